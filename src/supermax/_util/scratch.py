"""Temporary folders of a process. If it is killed, the next process that needs one removes them.

A folder is locked as long as its process lives. The lock, an flock, ends with the process, also
if that runs in another container, in which its pid would say nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "supermax-tmp-"


@contextlib.contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yield a new temporary folder of this user, which is deleted afterwards. `kind` is part of
    its name."""
    _remove_abandoned()
    folder, lock = _create(f"{_PREFIX}{kind}-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        lock = _open(folder)
        try:
            ours = _is_free(lock)
        except OSError:  # a disk without locks, on which nobody removes it
            ours = True
        # Another process may have found it before it was locked, and removed it.
        if ours and folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned() -> None:
    """Remove the folders of this user whose process is dead."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is gone, or no folder, or another user's
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = _open(folder)
            try:
                if _is_free(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_free(lock: int) -> bool:
    """Lock an open folder. Return False if another process has locked it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
