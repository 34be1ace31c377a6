"""SQLite as a run wants it: readers beside the writer, and a file that stays what it was."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import sqlalchemy.event
import sqlalchemy.exc
from optuna.storages import BaseStorage, RDBStorage


def is_sqlite(storage: BaseStorage) -> bool:
    return isinstance(storage, RDBStorage) and storage.engine.name == "sqlite"


def database_file(storage: BaseStorage) -> Path | None:
    """The file of an SQLite storage, as the open connection knows it; None for one in memory.

    The driver makes a relative path absolute when the storage is opened, so the working
    directory of today says nothing.
    """
    if not isinstance(storage, RDBStorage) or not is_sqlite(storage):
        return None
    engine = storage.engine
    args, options = engine.dialect.create_connect_args(engine.url)
    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
        if _pooled(engine):
            with engine.connect() as connection:
                row = connection.exec_driver_sql("PRAGMA database_list").first()
                return Path(row[2]) if row and row[2] else None
    name = str(args[0]) if args else ""
    if ":memory:" in name or not name or options.get("mode") == "memory":
        return None
    return Path(name.removeprefix("file:").partition("?")[0]).absolute()


def _pooled(engine: Any) -> bool:
    """True when a connection is open: a new one would make a file that was deleted anew."""
    checked_in = getattr(engine.pool, "checkedin", lambda: 0)
    return bool(checked_in() > 0)


def use_wal(storage: RDBStorage) -> None:
    """Write-ahead logging: a dashboard may read while the run writes.

    The mode stays with the file. It cannot be set while somebody reads, so it is tried on every
    new connection and whenever a run starts; without it all works, with more waiting.
    """
    if not sqlalchemy.event.contains(storage.engine, "connect", _set_wal):
        sqlalchemy.event.listen(storage.engine, "connect", _set_wal)
    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError), storage.engine.connect() as opened:
        _set_wal(opened.connection, None)


def _set_wal(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    with contextlib.suppress(Exception):
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


class SameFile:
    """Notices when a file is no longer the one it was: an open database would go on writing to
    what nobody can read any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = self._look()

    @property
    def key(self) -> str | None:
        return "-".join(map(str, self._identity)) if self._identity else None

    def is_there(self) -> bool:
        return self._identity is not None and self._look() == self._identity

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
