"""Where a study lives: what its storage is, its default run folder, and getting both ready.

study ──▶ storage's address (no password) ──▶ run folder beside it, or in the user's data folder
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import get_lock_file
from optuna.study import Study


@dataclass(frozen=True)
class Home:
    """`address` is the same in every process that opens the storage, and holds no secret."""

    address: str
    run_dir: Path
    volatile: bool  # the study is gone with this process


def find_home(study: Study) -> Home:
    storage = _unwrapped(study._storage)
    name = _file_name(study.study_name)
    file = _file_of(storage)
    if file is not None:
        beside = file.with_name(f"{file.name}.supermax")
        return Home(str(file), beside / name, volatile=False)
    if isinstance(storage, InMemoryStorage) or _is_sqlite(storage):
        somewhere = Path(tempfile.gettempdir()) / f"supermax-{uuid.uuid4().hex[:12]}"
        return Home("memory", somewhere / name, volatile=True)
    address = _address(storage)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    digest = hashlib.sha256(address.encode()).hexdigest()[:12]
    return Home(address, data / "supermax" / digest / name, volatile=False)


def prepare(storage: BaseStorage) -> None:
    """Readers and one writer side by side on SQLite; no torn line in a journal."""
    storage = _unwrapped(storage)
    if isinstance(storage, RDBStorage) and _file_of(storage) is not None:
        _use_wal(storage.engine)
    if isinstance(storage, JournalStorage) and type(storage._backend) is JournalFileBackend:
        storage._backend = MendingJournal(storage._backend)


class MendingJournal(JournalFileBackend):
    """Optuna's journal file, whose torn last line (from a writer that was killed) is put aside
    before the next line is appended; Optuna would glue the two together and lose the file."""

    def __init__(self, original: JournalFileBackend) -> None:
        vars(self).update(vars(original))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with get_lock_file(self._lock):
            mend_tail(Path(self._file_path))
        super().append_logs(logs)


def mend_tail(path: Path) -> bytes:
    """Cut an unfinished last line off a file of lines; it is kept in a file beside. Call it
    while nobody else writes."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return b""
        keep = _end_of_last_line(file, size)
        file.seek(keep)
        torn: bytes = file.read()
        with path.with_name(f"{path.name}.torn").open("ab") as aside:
            aside.write(torn + b"\n")
        file.truncate(keep)
        return torn


def _end_of_last_line(file: Any, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return int(start + at + 1)
        end = start
    return 0


def _use_wal(engine: Any) -> None:
    def on_connect(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        with contextlib.suppress(Exception):  # locked just now, or a disk that cannot: still works
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    if not getattr(engine, "_supermax_wal", False):
        sqlalchemy.event.listen(engine, "connect", on_connect)
        engine._supermax_wal = True
        engine.dispose()  # connections made from here on have it


def _unwrapped(storage: BaseStorage) -> BaseStorage:
    return storage._backend if isinstance(storage, _CachedStorage) else storage


def _is_sqlite(storage: BaseStorage) -> bool:
    return isinstance(storage, RDBStorage) and storage.engine.name == "sqlite"


def _file_of(storage: BaseStorage) -> Path | None:
    """The file a storage lives in, or None."""
    if isinstance(storage, JournalStorage):
        backend = storage._backend
        return (
            Path(backend._file_path).absolute()
            if isinstance(backend, JournalFileBackend)
            else None
        )
    if isinstance(storage, RDBStorage) and _is_sqlite(storage):
        database = storage.engine.url.database
        if database and database != ":memory:" and not database.startswith("file:"):
            return Path(database).absolute()
    return None


def _address(storage: BaseStorage) -> str:
    if isinstance(storage, RDBStorage):
        return str(storage.engine.url.set(password=None).render_as_string(hide_password=True))
    if isinstance(storage, JournalStorage):
        return f"journal {type(storage._backend).__name__} {getattr(storage._backend, '_url', '')}"
    host, port = getattr(storage, "_host", ""), getattr(storage, "_port", "")
    return f"{type(storage).__name__} {host}:{port}"


def _file_name(study_name: str) -> str:
    """A study's name as a file name: readable, safe and unique."""
    name = quote(study_name, safe=" ,=@+")
    if len(name) > 100 or name in ("", ".", ".."):
        name = f"{name[:80]}~{hashlib.sha256(study_name.encode()).hexdigest()[:12]}"
    return name
