"""Address of MLflow: a server, or a database that is opened directly."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from sqlalchemy.engine import make_url

from supermax._util.text import masked_url
from supermax.engine.storage.locations import Location
from supermax.errors import UserError
from supermax.results.tracking.destination import Destination
from supermax.studies import without_password

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
URI = "MLFLOW_TRACKING_URI"
USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


def mlflow_destination(uri: str | None, home: Location) -> Destination:
    """Return the destination of an address. Default: MLFLOW_TRACKING_URI, or else a file beside
    that of the study.

    Raises UserError for a store in which sending again would duplicate runs.
    """
    uri = uri or os.environ.get(URI) or str(_default_file(home))
    if "://" not in uri or uri.startswith("file:"):
        return _file(uri)
    scheme = uri.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return _server(uri)
    if scheme.partition("+")[0] == "sqlite":
        return _sqlite(uri)
    if scheme.partition("+")[0] in DATABASES or scheme.startswith("databricks"):
        return Destination(uri, without_password(uri))
    raise UserError(
        f"{without_password(uri)} is not an MLflow address. Give a server "
        f"(http://localhost:5000), a database (sqlite:///mlflow.db), or a file name."
    )


def _default_file(home: Location) -> Path:
    folder = home.file.parent if home.file is not None else home.run_dir / "tracking"
    return folder / "mlflow.db"


def _file(uri: str) -> Destination:
    """Return the destination of a file name, or of MLflow's keyword `databricks`."""
    if uri.startswith("databricks"):
        return Destination(uri, uri)
    path = Path(uri.removeprefix("file:").removeprefix("//")).expanduser().absolute()
    if path.is_dir() or uri.startswith("file:"):
        raise UserError(
            f"{path} is a folder, in which MLflow would duplicate runs that are sent again. Give "
            f"a database file (mlflow.db) or the address of a server."
        )
    if "?" in str(path) or "#" in str(path):
        raise UserError(f"A database file cannot have ? or # in its name: {path}")
    return _sqlite(f"sqlite:///{path}")


def _sqlite(uri: str) -> Destination:
    database = make_url(uri).database or ""
    if not database or database.startswith((":memory:", "file:")):
        raise UserError(f"{uri} is in memory, so nothing would be kept. Give a file name.")
    path = Path(database).absolute()
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} for {path.name}.")
    return Destination(f"sqlite:///{path}", f"sqlite:///{path}", file=path)


def _server(uri: str) -> Destination:
    """Return a server with user name and password apart from the address. A query is dropped."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise UserError(
            f"{masked_url(uri)} is not the address of a server, such as http://localhost:5000."
        )
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    login = {USER: parts.username, PASSWORD: parts.password}
    environment = {name: unquote(value) for name, value in login.items() if value}
    return Destination(bare.rstrip("/"), bare.rstrip("/"), environment)
