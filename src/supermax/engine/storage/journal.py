"""Optuna's journal files, repaired after a writer was killed in the middle of a line.

Optuna skips a torn last line when it reads, but appends the next one to it without a newline; from
the line after that on the file is unreadable.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import IO

from optuna.exceptions import DuplicatedStudyError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._file import get_lock_file
from optuna.storages.journal._storage import JournalStorageReplayResult

NAMES = (".journal", ".log")
"""Suffixes by which a file that does not exist yet is a journal."""
_START = b'{"op_code":'
_SQLITE = b"SQLite format 3"
_STALE = 1.0  # seconds; no process holds a lock for longer


def is_journal(path: Path) -> bool:
    """Return whether a path is a journal's: by the content of the file, or else by its suffix."""
    start = _start_of(path)
    named = path.suffix.lower() in NAMES
    return start.startswith(_START) or (named and start != _SQLITE)


def is_foreign(path: Path) -> bool:
    """Return whether the file has other content, which a journal would damage."""
    start = _start_of(path)
    return bool(start) and not start.startswith(_START) and not _START.startswith(start)


def open_journal(path: Path) -> JournalStorage:
    """Open Optuna's storage; create the file if it does not exist. Links to the file share its
    lock."""
    file = str(path.resolve())
    return JournalStorage(JournalFileBackend(file, _VerboseLock(file)))


def damaged_line(path: Path) -> int | None:
    """Return the number of the first line that Optuna cannot read, from 1; None: all are valid."""
    replay = JournalStorageReplayResult("supermax")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                replay.apply_logs([json.loads(line)])
            except Exception:  # Optuna raises KeyError and others for missing fields
                return number
    return None


class _VerboseLock(JournalFileSymlinkLock):
    """Lock that prints a message before it waits for a stale lock: Optuna waits half a minute."""

    def acquire(self) -> bool:
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(self._lock_file).st_mtime > _STALE:
                print(
                    f"Waiting for {self._lock_file}, which a killed process may have left; it is "
                    f"removed in {self.grace_period} s.",
                    file=sys.stderr,
                    flush=True,
                )
        return super().acquire()


def _start_of(path: Path) -> bytes:
    """Return the first bytes of a file; b"": it does not exist or cannot be read.

    A database is recognised by SQLite and not opened directly: closing any descriptor of a file
    drops this process's POSIX locks on it, and another process could then delete the write-ahead
    log that is in use.
    """
    try:
        if not path.is_file():  # opening a pipe would block
            return b""
        if _is_database(path):
            return _SQLITE
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError:  # the code that opens it reports why
        return b""


def _is_database(path: Path) -> bool:
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            return bool(database.execute("PRAGMA schema_version").fetchone()[0])
    except (sqlite3.Error, ValueError):
        return False


def repair(storage: JournalStorage) -> None:
    """Repair the file now, and before every append from here on."""
    backend = storage._backend
    if type(backend) is JournalFileBackend:
        storage._backend = backend = RepairingJournal(backend)
    if isinstance(backend, RepairingJournal):
        with get_lock_file(backend._lock):
            repair_tail(Path(backend._file_path))
        with contextlib.suppress(DuplicatedStudyError):  # create_study's own line, read only now
            storage.get_all_studies()


class RepairingJournal(JournalFileBackend):
    """Backend that repairs the last line of the file before it appends."""

    def __init__(self, original: JournalFileBackend) -> None:
        vars(self).update(vars(original))

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        with get_lock_file(self._lock):
            repair_tail(Path(self._file_path))
        super().append_logs(logs)


def repair_tail(path: Path) -> bytes:
    """Remove a torn line from the end of the file, save it to PATH.torn, and return it.

    A complete line that was appended to a torn one is kept. Hold the lock when you call this.
    """
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, size)
        file.seek(start)
        line: bytes = file.read()
        complete = _complete_record(line)
        torn = line.removesuffix(complete) if complete else line
        if not torn:
            return b""
        with path.with_name(f"{path.name}.torn").open("ab") as torn_file:
            torn_file.write(torn + b"\n")
        file.seek(start)
        file.truncate()
        file.write(complete)
        return torn


def _complete_record(line: bytes) -> bytes:
    """Return the part at the end of `line` that is a complete record: all of it, a record appended
    to a torn one, or b""."""
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
    end = max(0, size - 1)  # skip the newline that ends the last line
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
