"""Optuna's journal files, safe against writers that were killed in the middle of a line.

Optuna skips a torn last line when it reads, but glues the next one onto it, and from the line
after that on the file is unreadable.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import IO, Any

from optuna.exceptions import DuplicatedStudyError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._file import get_lock_file
from optuna.storages.journal._storage import JournalStorageReplayResult

NAMES = (".journal", ".log")
"""How files that are yet to be made are named as journals."""
_START = b'{"op_code":'
_SQLITE = b"SQLite format 3"
_STALE = 1.0  # seconds for which nobody holds a lock


def is_meant(path: Path) -> bool:
    """Whether a path is a journal's: by what is in the file, or else by its name."""
    start = _start_of(path)
    named = path.suffix.lower() in NAMES
    return start.startswith(_START) or (named and start != _SQLITE)


def is_foreign(path: Path) -> bool:
    """A file that holds something else, which a journal's lines would spoil."""
    start = _start_of(path)
    return bool(start) and not start.startswith(_START) and not _START.startswith(start)


def open_journal(path: Path) -> JournalStorage:
    """Optuna's storage; the file is made if it is not there. By whatever path it is named, the
    lock is the same."""
    file = str(path.resolve())
    return JournalStorage(JournalFileBackend(file, _TellingLock(file)))


def damaged_line(path: Path) -> int | None:
    """The first line that Optuna cannot take, counted from one."""
    replay = JournalStorageReplayResult("supermax")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                replay.apply_logs([json.loads(line)])
            except Exception:  # whatever is missing in it
                return number
    return None


class _TellingLock(JournalFileSymlinkLock):
    """Optuna waits half a minute for a lock that nobody holds any more."""

    def acquire(self) -> bool:
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(self._lock_file).st_mtime > _STALE:
                print(
                    f"Waiting for {self._lock_file}, which a killed process may have left; in "
                    f"{self.grace_period} s it is taken away.",
                    file=sys.stderr,
                    flush=True,
                )
        return super().acquire()


def _start_of(path: Path) -> bytes:
    """A database is not opened past SQLite: closing it would take this process's locks on it
    away, and another process could then delete the log that its readers and writers need."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return b""
        if _is_database(path):
            return _SQLITE
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError:  # not there, or a folder, or not ours to read: whoever opens it says so
        return b""


def _is_database(path: Path) -> bool:
    try:
        where = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(where, uri=True)) as database:
            return bool(database.execute("PRAGMA schema_version").fetchone()[0])
    except (sqlite3.Error, ValueError):
        return False


def mend(storage: JournalStorage) -> None:
    """Repair the file now, and before every line that is appended from here on."""
    backend = storage._backend
    if type(backend) is JournalFileBackend:
        storage._backend = backend = MendingJournal(backend)
    if isinstance(backend, MendingJournal):
        with get_lock_file(backend._lock):
            mend_tail(Path(backend._file_path))
        with contextlib.suppress(DuplicatedStudyError):  # create_study's own line, read only now
            storage.get_all_studies()


class MendingJournal(JournalFileBackend):
    def __init__(self, original: JournalFileBackend) -> None:
        vars(self).update(vars(original))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with get_lock_file(self._lock):
            mend_tail(Path(self._file_path))
        super().append_logs(logs)


def mend_tail(path: Path) -> bytes:
    """Take a torn line off the end of the file; what is left of it is kept in a file beside.

    A line that was glued onto a torn one is kept. Call it while nobody else writes.
    """
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, size)
        file.seek(start)
        line: bytes = file.read()
        whole = _whole_part(line)
        torn = line.removesuffix(whole) if whole else line
        if not torn:
            return b""
        with path.with_name(f"{path.name}.torn").open("ab") as aside:
            aside.write(torn + b"\n")
        file.seek(start)
        file.truncate()
        file.write(whole)
        return torn


def _whole_part(line: bytes) -> bytes:
    """The end of `line` that is a whole record: all of it, a part that was glued on, or none."""
    at = 0 if line.endswith(b"\n") else -1
    while at >= 0:
        try:
            json.loads(line[at:])
        except ValueError:
            at = line.find(_START, at + 1)
        else:
            return line[at:]
    return b""


def _start_of_last_line(file: IO[bytes], size: int) -> int:
    end = max(0, size - 1)  # the last line's own newline does not count
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
