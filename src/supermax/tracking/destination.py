"""Where the runs go: an MLflow server, or a database of MLflow's that is opened directly."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from supermax.engine.home import Home
from supermax.errors import UserError
from supermax.study import without_password
from supermax.tracking.names import digest
from supermax.words import is_secret, masked_url

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
URI = "MLFLOW_TRACKING_URI"
USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


@dataclass(frozen=True)
class Destination:
    """`uri` may hold a database's password and is shown nowhere; `shown` may be."""

    uri: str = field(repr=False)
    shown: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """A server's name and password, as MLflow reads them: its messages quote the address."""
    file: Path | None = None
    """MLflow's own database, when it is an SQLite file."""

    @property
    def digest(self) -> str:
        """Names the record of what was sent there; a new password leads to the same place."""
        return digest(self.shown)[:12]

    def hush(self, message: str) -> str:
        """A message without the password, whoever wrote it."""
        for secret in self._secrets():
            message = message.replace(secret, "***")
        return message

    def _secrets(self) -> list[str]:
        found = [self.environment.get(PASSWORD) or ""]
        with contextlib.suppress(ArgumentError, ValueError):
            url = make_url(self.uri)
            found.append(str(url.password or ""))
            found += [str(value) for name, value in url.query.items() if is_secret(name)]
        spelled = {text for one in found if one for text in (one, quote(one), quote(one, safe=""))}
        return sorted(spelled, key=len, reverse=True)


def destination(uri: str | None, home: Home) -> Destination:
    """By default what MLFLOW_TRACKING_URI says, or else a file beside the study's.

    Raises UserError for what cannot be sent to again and again without doubling anything.
    """
    uri = uri or os.environ.get(URI) or str(_beside(home))
    if "://" not in uri or uri.startswith("file:"):
        return _named(uri)
    scheme = uri.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return _server(uri)
    if scheme.partition("+")[0] == "sqlite":
        return _sqlite(uri)
    if scheme.partition("+")[0] in DATABASES or scheme.startswith("databricks"):
        return Destination(uri, without_password(uri))
    raise UserError(
        f"{without_password(uri)} is no address of MLflow's. Give a server's "
        f"(http://localhost:5000), a database's (sqlite:///mlflow.db), or a file's name."
    )


def _beside(home: Home) -> Path:
    folder = home.file.parent if home.file is not None else home.run_dir / "tracking"
    return folder / "mlflow.db"


def _named(uri: str) -> Destination:
    """A word of MLflow's own, or the name of a file."""
    if uri.startswith("databricks"):
        return Destination(uri, uri)
    path = Path(uri.removeprefix("file:").removeprefix("//")).expanduser().absolute()
    if path.is_dir() or uri.startswith("file:"):
        raise UserError(
            f"{path} is a folder of MLflow's, in which runs cannot be sent twice without being "
            f"there twice. Give a database's file (mlflow.db) or a server's address."
        )
    if "?" in str(path) or "#" in str(path):
        raise UserError(f"A database's file cannot have ? or # in its name: {path}")
    return _sqlite(f"sqlite:///{path}")


def _sqlite(uri: str) -> Destination:
    database = make_url(uri).database or ""
    if not database or database.startswith((":memory:", "file:")):
        raise UserError(f"{uri} is in memory, where nothing stays. Give the name of a file.")
    path = Path(database).absolute()
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} for {path.name}.")
    return Destination(f"sqlite:///{path}", f"sqlite:///{path}", file=path)


def _server(uri: str) -> Destination:
    """The name and password apart from the address; what follows a ? is no part of it."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise UserError(
            f"{masked_url(uri)} is no server's address. It looks like http://localhost:5000."
        )
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    login = {USER: parts.username, PASSWORD: parts.password}
    environment = {name: unquote(value) for name, value in login.items() if value}
    return Destination(bare.rstrip("/"), bare.rstrip("/"), environment)
