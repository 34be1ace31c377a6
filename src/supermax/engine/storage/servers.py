"""Connect to a database server: driver, version of the server, version of Optuna's tables.

Every mistake in the URL, and every reason of the server, becomes a message with advice.
"""

from __future__ import annotations

import importlib
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from sqlalchemy.engine import URL

from supermax._util.text import masked_query
from supermax.engine.storage import rdb
from supermax.engine.storage.database_errors import advice, driver_message, problem_of
from supermax.errors import EnvironmentFault, UserError

_MODULES = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql.connector"}
_DRIVERS = {
    "postgresql": ("psycopg", "psycopg2"),
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
}
"""Database → drivers of SQLAlchemy, the one to recommend first."""
_PACKAGES = {"psycopg": "'psycopg[binary]'", "mysqldb": "mysqlclient"}
_OLDEST = {"PostgreSQL": (10,), "MySQL": (8,), "MariaDB": (10, 3)}
SUPPORTED = "postgresql+psycopg://…, mysql+pymysql://…, sqlite:///FILE or journal:///FILE"


_MOST_ATTEMPTS = 6
_CREATED_MEANWHILE = ("42P07", "42710", "23505", 1050, 1062)
"""Codes of PostgreSQL and MySQL: a table, type or row is there already."""


class NothingStored(UserError):
    """There is no study yet: no file, or a database without Optuna's tables."""


def connect_server(url: URL, *, create: bool) -> BaseStorage:
    """Connect to a server with one connection: hundreds of runs may share it. Optuna needs a
    second one for a moment when it opens the storage. `create`: create Optuna's tables where they
    are missing; otherwise raise NothingStored."""
    url = with_driver(url)
    engine_kwargs = {
        "pool_size": 1,
        "max_overflow": 1,
        "connect_args": rdb.connection_settings(url),
    }
    address = url.render_as_string(hide_password=False)
    with explained(url):
        if not create:
            _require_tables(url)
        backend = _open_backend(address, engine_kwargs)
        if (problem := _other_version(backend, url) or _too_old(backend, url)) is not None:
            backend.engine.dispose()
            raise EnvironmentFault(problem)
        backend.skip_compatibility_check = False
        return _CachedStorage(backend)


def _open_backend(address: str, engine_kwargs: dict[str, object]) -> RDBStorage:
    """Open the storage, and create Optuna's tables. Another run may create them at the same
    moment: then one of the two fails, and finds them there when it tries again."""
    for attempt in range(1, _MOST_ATTEMPTS + 1):
        try:
            return RDBStorage(address, engine_kwargs, skip_compatibility_check=True)
        except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
            root = rdb.root_of(error)
            cause = getattr(root, "orig", None) or root
            code = getattr(cause, "sqlstate", None) or next(iter(cause.args), None)
            if code not in _CREATED_MEANWHILE or attempt == _MOST_ATTEMPTS:
                raise
        time.sleep(0.3 * attempt)
    raise AssertionError("unreachable")


def with_driver(url: URL) -> URL:
    """Return the URL with a driver that is installed. A URL that names none gets SQLAlchemy's
    default, or another one if only that is installed. Raises UserError where there is none."""
    url = url.set(drivername=re.sub(r"^postgres(?=\+|$)", "postgresql", url.drivername))
    database = url.get_backend_name()
    if database not in _DRIVERS:
        raise UserError(
            f"{shown_url(url)}: '{database}' is not a kind of storage that Supermax supports. "
            f"Write {SUPPORTED}."
        )
    try:
        is_async = bool(getattr(url.get_dialect(), "is_async", False))
    except sqlalchemy.exc.NoSuchModuleError:
        raise UserError(
            f"{shown_url(url)} names a driver that SQLAlchemy does not have. {_correct(database)}"
        ) from None
    if is_async:
        raise UserError(
            f"{shown_url(url)} names an asyncio driver, which Optuna cannot use. "
            f"{_correct(database)}"
        )
    named = url.get_driver_name()
    others = () if "+" in url.drivername else _DRIVERS[database]
    for driver in (named, *others):
        if _is_installed(driver):
            return url if driver == named else url.set(drivername=f"{database}+{driver}")
    recommended = _DRIVERS[database][0]
    remedy = f"pip install {_PACKAGES.get(recommended, recommended)}"
    if named != recommended:
        remedy += f", and write {database}+{recommended}://…"
    raise UserError(f"The driver {named} of {shown_url(url)} is not installed. Run {remedy}.")


def _correct(database: str) -> str:
    driver = _DRIVERS[database][0]
    package = _PACKAGES.get(driver, driver)
    return f"Write {database}+{driver}://…, after pip install {package}."


def _is_installed(driver: str) -> bool:
    try:
        importlib.import_module(_MODULES.get(driver, driver))
    except ImportError:  # also a module whose C library is missing
        return False
    return True


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn errors of a server into an EnvironmentFault with the reason and advice."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        raise EnvironmentFault(
            f"The storage {shown_url(url)} cannot be opened: {why(error, url)}."
        ) from None


def why(error: BaseException, url: URL | None = None) -> str:
    """Return the reason of a server, and advice, without a full stop at the end."""
    root = rdb.root_of(error)
    message, problem = driver_message(root), problem_of(root)
    return message if problem is None else f"{message}. {advice(problem, url)}"


def shown_url(url: URL) -> str:
    """Return the URL without passwords."""
    return masked_query(url.render_as_string(hide_password=True))


def _require_tables(url: URL) -> None:
    """Raise NothingStored if the database has none of Optuna's tables, which it would create."""
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, connect_args=rdb.connection_settings(url)
    )
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("studies"):
            raise NothingStored(
                f"{shown_url(url)} holds no studies: the database is empty, or some other "
                f"program's. Name the studies' file or URL with --storage."
            )


def _other_version(backend: RDBStorage, url: URL) -> str | None:
    """Return the message for tables of another version of Optuna; None: they have this one's."""
    current = backend.get_current_version()
    if current == backend.get_head_version():
        return None
    if earlier := current in backend.get_all_versions():
        remedy = f"run `optuna storage upgrade --storage {shlex.quote(shown_url(url))}` once"
        if url.password:
            remedy += ", with the password"
    else:
        remedy = "install that version"
    return (
        f"The storage {shown_url(url)} cannot be opened: its tables have the format of "
        f"{'an earlier' if earlier else 'a later'} version of Optuna ({current}). Stop all "
        f"programs that use it, make a backup, and {remedy}."
    )


def _too_old(backend: RDBStorage, url: URL) -> str | None:
    dialect = backend.engine.dialect
    is_mariadb = getattr(dialect, "is_mariadb", False)
    name = "MariaDB" if is_mariadb else {"mysql": "MySQL"}.get(dialect.name, "PostgreSQL")
    version = tuple(n for n in dialect.server_version_info or () if isinstance(n, int))
    why = too_old(name, version)
    return f"The storage {shown_url(url)} cannot be used: {why}." if why else None


def too_old(name: str, version: tuple[int, ...]) -> str | None:
    """Return why a server of this version cannot be used; None: it can."""
    oldest = _OLDEST[name]
    if not version or version >= oldest:
        return None
    said, needed = (".".join(map(str, numbers)) for numbers in (version, oldest))
    return f"the server is {name} {said}, and Supermax needs {needed} or later. Upgrade the server"
