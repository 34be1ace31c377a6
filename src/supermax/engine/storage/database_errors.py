"""Errors of database servers: what is wrong, and what to do about it.

    error of a driver ──▶ SQLSTATE, or MySQL's number, or libpq's message ──▶ Problem ──▶ advice

libpq gives no code for errors of connecting, so its words are compared, as the server sends them
in English. In another language the problem is unknown: the driver's message is shown alone.
"""

from __future__ import annotations

import re
from enum import Enum

import sqlalchemy.exc
from sqlalchemy.engine import URL

from supermax._util.text import in_short

_FATAL = re.compile(r"FATAL:\s+(.*)")
_FAILED = re.compile(r"connection to server .* failed: (.*)")


class Problem(Enum):
    """Reason why a database server cannot be used; the value is the advice."""

    UNREACHABLE = (
        "Check the host and the port in the URL, that the server is running, and that it accepts "
        "connections from this machine"
    )
    PASSWORD = "Check the user and the password in the URL, or in {password_file}"
    NO_DATABASE = "Correct the name at the end of the URL, or create the database: {create}"
    READ_ONLY = (
        "Name the primary server instead of a read-only copy, and a user whose transactions may "
        "write (default_transaction_read_only)"
    )
    RIGHTS = "Grant the user of the URL all rights on the database"
    CONNECTIONS = "Raise max_connections of the server, or start fewer runs: each needs one"


_SQLSTATES = {
    "28000": Problem.PASSWORD,
    "28P01": Problem.PASSWORD,
    "3D000": Problem.NO_DATABASE,
    "25006": Problem.READ_ONLY,
    "42501": Problem.RIGHTS,
    "53300": Problem.CONNECTIONS,
}
_MYSQL = {
    1040: Problem.CONNECTIONS,
    1044: Problem.RIGHTS,  # for a database: it may also not exist
    1045: Problem.PASSWORD,
    1049: Problem.NO_DATABASE,
    1142: Problem.RIGHTS,
    1143: Problem.RIGHTS,
    1203: Problem.CONNECTIONS,
    1227: Problem.RIGHTS,
    1290: Problem.READ_ONLY,  # --read-only
    1698: Problem.PASSWORD,
    1792: Problem.READ_ONLY,  # of the transaction
    1836: Problem.READ_ONLY,
    2002: Problem.UNREACHABLE,
    2003: Problem.UNREACHABLE,
    2005: Problem.UNREACHABLE,
}
_LIBPQ = {
    "password authentication failed": Problem.PASSWORD,
    "no password supplied": Problem.PASSWORD,
    "no pg_hba.conf entry": Problem.PASSWORD,
    'role "': Problem.PASSWORD,
    "too many clients": Problem.CONNECTIONS,
    "remaining connection slots": Problem.CONNECTIONS,
    'database "': Problem.NO_DATABASE,
    "permission denied for database": Problem.RIGHTS,
    "connection refused": Problem.UNREACHABLE,
    "timeout expired": Problem.UNREACHABLE,
    "connection timeout": Problem.UNREACHABLE,
    "no route to host": Problem.UNREACHABLE,
    "network is unreachable": Problem.UNREACHABLE,
    "no such file or directory": Problem.UNREACHABLE,
    "failed to resolve host": Problem.UNREACHABLE,
    "could not translate host name": Problem.UNREACHABLE,
}
_PERMANENT = frozenset((Problem.PASSWORD, Problem.NO_DATABASE, Problem.READ_ONLY, Problem.RIGHTS))


def problem_of(error: BaseException) -> Problem | None:
    """Return the problem that an error of a database server stands for; None: another one."""
    if not isinstance(error, sqlalchemy.exc.DBAPIError):
        return None
    original = error.orig
    if (number := _mysql_number(original)) is not None:
        return _MYSQL.get(number)
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if state is not None:
        return _SQLSTATES.get(state)
    if not isinstance(error, sqlalchemy.exc.OperationalError):
        return None
    words = str(original).lower()
    return next((problem for part, problem in _LIBPQ.items() if part in words), None)


def _mysql_number(original: BaseException | None) -> int | None:
    if type(original).__module__.partition(".")[0].lower() not in ("pymysql", "mysqldb", "mysql"):
        return None
    number = getattr(original, "errno", None) or next(iter(getattr(original, "args", ())), None)
    return number if isinstance(number, int) else None


def driver_message(error: BaseException) -> str:
    """Return the essence of a driver's message, without the statement, on one line."""
    original = getattr(error, "orig", None) or error
    if _mysql_number(original) is not None and len(original.args) > 1:
        return in_short(str(original.args[1]).partition(" (using password")[0])
    text = str(original)
    if getattr(original, "sqlstate", None) is not None:
        text = text.partition("\n")[0]  # without PostgreSQL's excerpt of the statement
    if found := _FATAL.search(text) or _FAILED.search(text):
        text = found[1]
    return in_short(text)


def is_permanent(error: BaseException) -> bool:
    """Return whether a retry is useless until somebody changes a setting of the server."""
    return problem_of(error) in _PERMANENT


def advice(problem: Problem, url: URL | None = None) -> str:
    """Return what to do about a problem, as a sentence without its full stop."""
    create, password_file = "CREATE DATABASE", "~/.pgpass"
    if url is not None:
        create = f"CREATE DATABASE {url.database}"
        if url.get_backend_name() != "postgresql":
            password_file = "the file that ?read_default_file= names"
    return problem.value.format(create=create, password_file=password_file)
