"""SQLite storages: write-ahead logging, and detection of a replaced database file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import sqlalchemy.event
import sqlalchemy.exc
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy.engine import URL, Engine
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import asbool


def is_sqlite(storage: BaseStorage) -> bool:
    return isinstance(storage, RDBStorage) and storage.engine.name == "sqlite"


def database_file(storage: BaseStorage) -> Path | None:
    """Return the file of an SQLite storage as the open connection knows it; None: in memory, or
    not SQLite.

    The driver makes a relative path absolute when the storage is opened; the working directory
    may have changed since.
    """
    if not isinstance(storage, RDBStorage) or not is_sqlite(storage):
        return None
    engine = storage.engine
    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
        if _pooled(engine):
            with engine.connect() as connection:
                row = connection.exec_driver_sql("PRAGMA database_list").first()
                return Path(row[2]) if row and row[2] else None
    return file_of_url(engine.url)


def file_of_url(url: URL) -> Path | None:
    """Return the file of an SQLite URL, with links unresolved; None: in memory."""
    name = url.database or ""
    if asbool(url.query.get("uri", False)) and name.startswith("file:"):
        # file:x, file:/x or file:///x, as SQLite reads them
        name = "" if url.query.get("mode") == "memory" else unquote(urlsplit(name).path)
    return Path(name).absolute() if name and not name.startswith(":memory:") else None


def _pooled(engine: Engine) -> bool:
    """Return whether a connection is open: a new one would create a deleted file again."""
    checked_in = getattr(engine.pool, "checkedin", lambda: 0)
    return bool(checked_in() > 0)


def use_wal(storage: RDBStorage) -> None:
    """Turn on write-ahead logging: a dashboard may read while the run writes.

    The mode is stored in the file. It cannot be set while another process reads, so it is tried
    on every new connection and whenever a run starts; without it readers and writers block each
    other.
    """
    if not sqlalchemy.event.contains(storage.engine, "connect", _set_wal):
        sqlalchemy.event.listen(storage.engine, "connect", _set_wal)
    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError), storage.engine.connect() as opened:
        _set_wal(opened.connection, None)


def _set_wal(connection: DBAPIConnection | PoolProxiedConnection, _: object) -> None:
    cursor = connection.cursor()
    with contextlib.suppress(Exception):
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


class SameFile:
    """Identity of a file (device and inode): detects that it was removed or replaced, in which
    case an open database would write to a deleted file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = self._read_identity()

    @property
    def key(self) -> str | None:
        """Identity as text; None: the file did not exist."""
        return "-".join(map(str, self._identity)) if self._identity else None

    def is_there(self) -> bool:
        """Return whether the path still leads to the same file."""
        return self._identity is not None and self._read_identity() == self._identity

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
