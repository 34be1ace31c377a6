"""Temporary folders of a process. If it is killed, the next process that needs one removes them.

A folder is locked as long as its process lives. The lock, an flock, ends with the process, also
if that runs in another container, in which its pid would say nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_PREFIX = "supermax-tmp-"


@contextlib.contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yield a new temporary folder of this user, which is deleted afterwards. `kind` is part of
    its name."""
    _remove_abandoned(Path(tempfile.gettempdir()), f"{_PREFIX}*")
    with _locked(lambda: Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-"))) as folder:
        yield folder


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `path`, to write what is then moved there. It is deleted
    afterwards; those of killed processes for the same path are deleted first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent, f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}")

    def make() -> Path:
        folder = path.parent / f".{path.name}.{uuid.uuid4().hex}"
        folder.mkdir()
        return folder

    with _locked(make) as folder:
        yield folder


@contextlib.contextmanager
def _locked(make: Callable[[], Path]) -> Iterator[Path]:
    folder, lock = _create(make)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create(make: Callable[[], Path]) -> tuple[Path, int]:
    while True:
        folder = make()
        lock = _open(folder)
        try:
            ours = _is_free(lock)
        except OSError:  # a disk without locks, on which nobody removes it
            ours = True
        # Another process may have found it before it was locked, and removed it.
        if ours and folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned(place: Path, pattern: str) -> None:
    """Remove the folders of this user whose process is dead."""
    for folder in place.glob(pattern):
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
