"""Errors of database servers: what is wrong, and what to do about it.

    driver's error ──▶ SQLSTATE, MySQL's number or libpq's message ──▶ DatabaseProblem ──▶ advice

libpq gives no code for errors of connecting, so its words are compared, as the server sends them
in English. In another language the problem is unknown: the driver's message is shown alone.
"""

from __future__ import annotations

import os
import re
import shlex
from enum import Enum
from pathlib import Path

import sqlalchemy.exc
from sqlalchemy.engine import URL

from supermax._util.text import SERVICE_PREFIX, in_short

_FATAL = re.compile(r"FATAL:\s+(.*)")
_FAILED = re.compile(r"connection to server .* failed: (.*)")


class DatabaseProblem(Enum):
    """Reason why a database server cannot be used; the value is the advice."""

    UNREACHABLE = (
        "Check the host and the port in {source}, that the server is running{start}, and that it "
        "accepts connections from this machine"
    )
    PASSWORD = "Check the user and the password in {source}, or in {password_file}"
    SERVICE = (
        "Name a file that defines the service: export PGSERVICEFILE=FILE. For a server of "
        "`supermax database FOLDER` it is FOLDER/pg_service.conf, which only its owner can read"
    )
    NO_DATABASE = "Correct the name at the end of the URL, or create the database: {create}"
    READ_ONLY = (
        "Name the primary server instead of a read-only copy, and a user whose transactions may "
        "write (default_transaction_read_only)"
    )
    RIGHTS = "Grant the user of the URL all rights on the database{grant}"
    CONNECTIONS = "Raise max_connections of the server, or start fewer runs: each needs one"


_SQLSTATES = {
    "28000": DatabaseProblem.PASSWORD,
    "28P01": DatabaseProblem.PASSWORD,
    "3D000": DatabaseProblem.NO_DATABASE,
    "25006": DatabaseProblem.READ_ONLY,
    "42501": DatabaseProblem.RIGHTS,
    "53300": DatabaseProblem.CONNECTIONS,
}
_MYSQL = {
    1040: DatabaseProblem.CONNECTIONS,
    1044: DatabaseProblem.RIGHTS,  # for a database: it may also not exist
    1045: DatabaseProblem.PASSWORD,
    1049: DatabaseProblem.NO_DATABASE,
    1142: DatabaseProblem.RIGHTS,
    1143: DatabaseProblem.RIGHTS,
    1203: DatabaseProblem.CONNECTIONS,
    1227: DatabaseProblem.RIGHTS,
    1290: DatabaseProblem.READ_ONLY,  # --read-only
    1698: DatabaseProblem.PASSWORD,
    1792: DatabaseProblem.READ_ONLY,  # of the transaction
    1836: DatabaseProblem.READ_ONLY,
    2002: DatabaseProblem.UNREACHABLE,
    2003: DatabaseProblem.UNREACHABLE,
    2005: DatabaseProblem.UNREACHABLE,
}
_LIBPQ = {
    "definition of service": DatabaseProblem.SERVICE,
    "service file": DatabaseProblem.SERVICE,
    "password authentication failed": DatabaseProblem.PASSWORD,
    "no password supplied": DatabaseProblem.PASSWORD,
    "no pg_hba.conf entry": DatabaseProblem.PASSWORD,
    'role "': DatabaseProblem.PASSWORD,
    "too many clients": DatabaseProblem.CONNECTIONS,
    "remaining connection slots": DatabaseProblem.CONNECTIONS,
    'database "': DatabaseProblem.NO_DATABASE,
    "permission denied for database": DatabaseProblem.RIGHTS,
    "connection refused": DatabaseProblem.UNREACHABLE,
    "timeout expired": DatabaseProblem.UNREACHABLE,
    "connection timeout": DatabaseProblem.UNREACHABLE,
    "no route to host": DatabaseProblem.UNREACHABLE,
    "network is unreachable": DatabaseProblem.UNREACHABLE,
    "no such file or directory": DatabaseProblem.UNREACHABLE,
    "failed to resolve host": DatabaseProblem.UNREACHABLE,
    "could not translate host name": DatabaseProblem.UNREACHABLE,
}
_PERMANENT = frozenset(DatabaseProblem) - {
    DatabaseProblem.UNREACHABLE,
    DatabaseProblem.CONNECTIONS,
}


def problem_of(error: BaseException) -> DatabaseProblem | None:
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


def advice(problem: DatabaseProblem, url: URL | None = None) -> str:
    """Return what to do about a problem, as a sentence without its full stop."""
    words = {
        "create": "CREATE DATABASE",
        "grant": " and, in PostgreSQL, on its schema and tables",
        "password_file": "~/.pgpass",
        "source": "the URL",
        "start": "",
    }
    if url is not None:
        words["create"] = f"CREATE DATABASE {url.database}"
        words["grant"] = _grants(url)
        if url.get_backend_name() != "postgresql":
            words["password_file"] = "the file that ?read_default_file= names"
        if "service" in url.query:
            words |= _of_service(str(url.query["service"]))
    return problem.value.format(**words)


def _grants(url: URL) -> str:
    """Return the statements for the rights that PostgreSQL does not grant with the database."""
    if url.get_backend_name() != "postgresql":
        return ""
    schema, user = "SCHEMA public", url.username or "USER"
    return (
        f", its schema and its tables: GRANT ALL ON {schema} TO {user}; "
        f"GRANT ALL ON ALL TABLES IN {schema} TO {user}"
    )


def _of_service(name: str) -> dict[str, str]:
    """Return where libpq finds the address of a service, and how a server of Supermax is
    started."""
    file = os.environ.get("PGSERVICEFILE", "~/.pg_service.conf")
    if not name.startswith(SERVICE_PREFIX):
        return {"source": file}
    command = f"supermax database {shlex.quote(str(Path(file).parent))}"
    return {"source": file, "start": f" (`{command}` starts it)"}
