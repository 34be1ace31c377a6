"""Lock of a database server: machines open a study one after the other.

Locks in files exclude the processes of one machine. Where a study is shared, only the database
can exclude the others: without this, each machine would make a version of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import sqlalchemy as sa
import sqlalchemy.exc
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage

from supermax.errors import EnvironmentFault

_PATIENCE = 600  # seconds
_LOCK_TIMEOUT = "55P03"
"""SQLSTATE of PostgreSQL: the lock was not available in time."""


@contextlib.contextmanager
def exclusive(storage: BaseStorage, name: str) -> Iterator[None]:
    """Hold the lock of a study's name on a database server; do nothing for other storages. The
    server releases it if this process dies. Takes a second connection for this time."""
    backend = storage._backend if isinstance(storage, _CachedStorage) else storage
    if not isinstance(backend, RDBStorage) or backend.engine.dialect.name == "sqlite":
        yield
        return
    lock = _postgresql_lock if backend.engine.dialect.name == "postgresql" else _mysql_lock
    connection = backend.engine.connect()
    try:
        with lock(connection, hashlib.sha256(f"supermax {name}".encode()).digest(), name):
            yield
    finally:
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):  # lost, and the lock with it
            connection.rollback()
        connection.close()


@contextlib.contextmanager
def _postgresql_lock(connection: sa.Connection, digest: bytes, name: str) -> Iterator[None]:
    """Hold a lock until the transaction ends, which also works behind a pooler of connections."""
    connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_PATIENCE}s'"))
    key = int.from_bytes(digest[:8], signed=True)
    try:
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
    except sqlalchemy.exc.OperationalError as error:
        codes = (getattr(error.orig, name, None) for name in ("sqlstate", "pgcode"))  # by driver
        if _LOCK_TIMEOUT in codes:
            raise _taken(name) from None
        raise
    yield


@contextlib.contextmanager
def _mysql_lock(connection: sa.Connection, digest: bytes, name: str) -> Iterator[None]:
    values = {"key": f"supermax {digest.hex()[:32]}", "seconds": _PATIENCE}
    if connection.execute(sa.text("SELECT GET_LOCK(:key, :seconds)"), values).scalar() != 1:
        raise _taken(name)
    try:
        yield
    finally:
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
            connection.execute(sa.text("SELECT RELEASE_LOCK(:key)"), {"key": values["key"]})


def _taken(name: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"Another program has been opening the study '{name}' for {_PATIENCE} seconds. End it, "
        f"and run the same command again."
    )
