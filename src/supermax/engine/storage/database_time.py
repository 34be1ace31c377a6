"""SQL expression for the clock of the database server."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler


class DatabaseTime(sa.sql.functions.FunctionElement[float]):
    """Seconds since 1970 by the clock of the database."""

    type = sa.Float()
    inherit_cache = True


@compiles(DatabaseTime, "postgresql")
def _postgresql_time(_: object, __: SQLCompiler, **___: object) -> str:
    return "extract(epoch from clock_timestamp())::float8"


@compiles(DatabaseTime, "mysql")
@compiles(DatabaseTime, "mariadb")
def _mysql_time(_: object, __: SQLCompiler, **___: object) -> str:
    return "(unix_timestamp(sysdate(6)) + 0e0)"
