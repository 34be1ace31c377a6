"""Mistakes about database servers: each is a sentence that says what to do, without passwords."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy
import sqlalchemy.exc
from optuna.trial import TrialState
from sqlalchemy.engine import make_url

import supermax
from supermax.engine.storage import database_errors, servers
from supermax.engine.storage.database_errors import DatabaseProblem, problem_of
from supermax.engine.storage.servers import NothingStored, too_old, with_driver
from supermax.errors import EnvironmentFault, UserError
from supermax.studies import existing, make_storage
from tests import ROOT
from tests.engine.programs import short_trial
from tests.engine.storage.postgres import Proxy, Server
from tests.ui.cli.helping import sm

SECRET = "hunter22"
UNREACHABLE = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:9/studies"
SPACE = "name: s\nparameters: {x: {type: float, low: 0, high: 1}}"


@pytest.fixture
def port(database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    proxy = Proxy(database.path)
    yield proxy.port
    proxy.close()


@pytest.fixture
def empty(port: int) -> Iterator[str]:
    """URL of a new database."""
    name = f"test_{os.getpid()}"
    with administration(port) as admin:
        admin.execute(sqlalchemy.text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        admin.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}"
    with administration(port) as admin:
        admin.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextlib.contextmanager
def administration(port: int, database: str = "postgres") -> Iterator[sqlalchemy.Connection]:
    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/{database}"
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def close(storage: object) -> None:
    storage._backend.engine.dispose()  # type: ignore[attr-defined]


# What the server rejects.


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (UNREACHABLE, "Connection refused. Check the host and the port"),
        ("postgresql+psycopg://me@nowhere.invalid/x", "Check the host and the port in the URL"),
        (f"postgresql+psycopg://guarded:{SECRET}@HERE/postgres", "Check the user and the pass"),
        ("postgresql+psycopg://guarded@HERE/postgres", "no password supplied. Check the user"),
        ("postgresql+psycopg://stranger@HERE/postgres", 'role "stranger" does not exist. Check'),
        ("postgresql+psycopg://postgres@HERE/nodb", "create the database: CREATE DATABASE nodb."),
    ],
)
def test_a_rejected_connection_is_explained(port: int, url: str, words: str) -> None:
    with administration(port) as admin:
        admin.execute(sqlalchemy.text("DROP ROLE IF EXISTS guarded"))
        admin.execute(sqlalchemy.text("CREATE ROLE guarded LOGIN PASSWORD 'right'"))
    url = url.replace("HERE", f"127.0.0.1:{port}")
    for open_ in (existing, make_storage):
        with pytest.raises(EnvironmentFault) as caught:
            open_(url)
        assert words in str(caught.value)
        assert SECRET not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql+psycopg://me:hun@ter22@h/x", "has several @. In a password, write %40 for @"),
        ("postgresql+psycopg://me:hun@x:ter22@h/x", "is not the URL of a storage. Write postgre"),
        ("postgresql+psycopg://me:hunter22@h:port/x", "the port as a number"),
        ("postgresql+psycopg://[::1/x", "is not the URL of a storage"),
        ("://", "is not the URL of a storage"),
        ("postgresql+psycopg:/me:hunter22@h/x", "***@h/x is not the URL of a storage"),
        ("mysql+pymysql//me:hunter22@h/x", "***@h/x is not the URL of a storage"),
    ],
)
def test_a_url_that_is_none_is_wrong_input(url: str, words: str) -> None:
    for command in ("status", "tune criteria"):
        said = sm(*command.split(), "--storage", url, code=2)
        assert words in said
        assert "ter22" not in said
        assert len(said.splitlines()) == 1


def test_a_service_is_found_as_advised(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, address = "postgresql+psycopg:///?service=supermax-abc", make_url(empty)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PGSERVICEFILE", raising=False)
    assert "FOLDER/pg_service.conf, which only its owner can read." in sm(
        "status", "--storage", url, code=3
    )
    file = tmp_path / "my database" / "pg_service.conf"
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    said = sm("status", "--storage", url, code=3)
    assert f'service file "{file}" not found. Name a file that defines the service: ' in said
    assert "export PGSERVICEFILE=FILE." in said
    file.parent.mkdir()
    entry = "[supermax-abc]\nhost=127.0.0.1\nuser=postgres\ndbname={}\nport={}\n"
    file.write_text(entry.format(address.database, 9))
    said = sm("status", "--storage", url, code=3)
    assert f"Check the host and the port in {file}, that the server is running (" in said
    assert f"`supermax database '{file.parent}'` starts it" in said
    file.write_text(entry.format(address.database, address.port))
    assert "holds no studies" in sm("status", "--storage", url, code=2)


COMMANDS = [
    "tune criteria",
    "status s",
    "report s",
    "faults s",
    "show 0 --study s",
    "best s",
    "dashboard s",
    "study list",
    "study migrate s space.yaml",
    "export s",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_explains_an_unreachable_server(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(SPACE)
    said = sm(*line.split(), "--storage", UNREACHABLE, code=3)
    assert "Connection refused. Check the host and the port in the URL" in said
    assert "Traceback" not in said
    assert SECRET not in said
    assert len(said.splitlines()) == 1  # `tune` says it before it loads torch


def test_the_advised_database_works(empty: str) -> None:
    """The message says CREATE DATABASE, which the fixture has done."""
    study = supermax.open_study(supermax.space.loads(SPACE), storage=empty, quiet=True)
    assert study.trials == []
    close(study._storage)


def test_runs_that_start_together_on_an_empty_database_both_open_it(empty: str) -> None:
    together, opened = threading.Barrier(4), []

    def start() -> None:
        together.wait(60)
        opened.append(make_storage(empty))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(opened) == 4
    for storage in opened:
        close(storage)


TOGETHER = """
import sys, supermax
from tests.engine.programs import short_trial
url, folder, space = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
study = supermax.open_study(supermax.space.loads(space), storage=url, quiet=True)
print(supermax.optimize(study, short_trial, 9, run_dir=folder, progress=False).told)
"""


@pytest.mark.slow
def test_programs_that_start_together_on_an_empty_database_share_it(
    empty: str, tmp_path: Path
) -> None:
    """They create the tables of Optuna and of leases, and the study, at the same moment."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, empty, str(tmp_path / str(number)), SPACE],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(5)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    assert sum(int(program.communicate(timeout=120)[0]) for program in programs) == 9
    assert [program.returncode for program in programs] == [0] * 5
    backend = existing(empty)
    (summary,) = backend.get_all_studies()
    trials = backend.get_all_trials(summary._study_id)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 9
    close(backend)


def test_reading_creates_no_tables(empty: str, port: int) -> None:
    said = sm("status", "--storage", empty, code=2)
    assert "holds no studies" in said
    assert "If a run is starting, try again in a minute" in said
    with pytest.raises(NothingStored):
        existing(empty)
    with administration(port, make_url(empty).database or "") as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == []


def test_the_status_of_a_run_that_is_starting(empty: str) -> None:
    """At first its study is missing, then its trials and the tables of runs."""
    close(make_storage(empty))
    for words in ((), ("s",), ("--watch",)):
        said = sm("status", *words, "--storage", empty, code=2 if words else 0)
        assert "If a run is starting, try again in a minute" in said
        assert len(said.splitlines()) == 1
    close(optuna.create_study(storage=empty, study_name="s")._storage)
    said = sm("status", "s", "--storage", empty)
    assert "s: no trials" in said
    assert "If a run is starting, try again in a minute" in said
    assert "there are s." in sm("status", "t", "--storage", empty, code=2)
    assert "no run known" in sm("status", "--storage", empty)


# Read-only databases.


@pytest.fixture
def stored(empty: str) -> str:
    """URL of a database with a study that has a trial."""
    study = optuna.create_study(storage=empty, study_name="s")
    supermax.optimize(study, short_trial, 1, progress=False)
    close(study._storage)
    return empty


@pytest.mark.usefixtures("quick")
def test_a_read_only_database_can_be_read_but_not_run(stored: str, port: int) -> None:
    name = make_url(stored).database
    with administration(port) as admin:
        admin.execute(
            sqlalchemy.text(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        )
    assert "1 finished" in sm("status", "s", "--storage", stored)
    study = optuna.load_study(storage=stored, study_name="s")
    with pytest.raises(EnvironmentFault, match=r"read-only transaction\. Name the primary"):
        supermax.optimize(study, short_trial, 2, progress=False)
    close(study._storage)
    space = supermax.space.loads(SPACE.replace("name: s", "name: other"))
    with pytest.raises(EnvironmentFault, match=r"cannot be written: .* Name the primary server"):
        supermax.open_study(space, storage=stored, quiet=True)


@pytest.mark.usefixtures("quick")
def test_a_user_who_may_only_read_is_told_so(stored: str, port: int) -> None:
    with administration(port) as admin:
        admin.execute(sqlalchemy.text("DROP ROLE IF EXISTS onlooker"))
        admin.execute(sqlalchemy.text("CREATE ROLE onlooker LOGIN IN ROLE pg_read_all_data"))
    url = stored.replace("postgres@", "onlooker@")
    assert "1 complete" in sm("status", "s", "--storage", url)
    study = optuna.load_study(storage=url, study_name="s")
    with pytest.raises(EnvironmentFault, match=r"permission denied .* Grant the user"):
        supermax.optimize(study, short_trial, 2, progress=False)
    close(study._storage)


def test_rights_are_granted_as_advised(empty: str, port: int) -> None:
    name = make_url(empty).database
    assert name is not None
    with administration(port, name) as admin:
        admin.execute(sqlalchemy.text("DROP ROLE IF EXISTS newcomer"))
        admin.execute(sqlalchemy.text("CREATE ROLE newcomer LOGIN"))
        url = empty.replace("postgres@", "newcomer@")
        with pytest.raises(EnvironmentFault, match="permission denied for schema") as caught:
            make_storage(url)
        statements = str(caught.value).rpartition("tables: ")[2].removesuffix(".").split("; ")
        assert all(statement.startswith("GRANT ALL ON ") for statement in statements)
        for statement in statements:
            admin.execute(sqlalchemy.text(statement))
        close(make_storage(url))
        admin.execute(sqlalchemy.text("DROP OWNED BY newcomer"))
        admin.execute(sqlalchemy.text("DROP ROLE newcomer"))


# Versions.


def set_version(url: str, port: int, version: str) -> None:
    with administration(port, make_url(url).database or "") as connection:
        connection.execute(sqlalchemy.text(f"UPDATE alembic_version SET version_num='{version}'"))


@pytest.mark.slow
def test_tables_of_an_earlier_optuna_are_upgraded_as_advised(stored: str, port: int) -> None:
    set_version(stored, port, "v3.0.0.d")  # the last upgrade creates an index
    said = sm("status", "s", "--storage", stored, code=3)
    assert "its tables have the format of an earlier version of Optuna (v3.0.0.d)" in said
    advised = shlex.split(said.split("`")[1])
    assert advised[0] == "optuna"
    program = Path(sys.executable).with_name(advised[0])
    done = subprocess.run([program, *advised[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1 finished" in sm("status", "s", "--storage", stored)


def test_tables_of_a_later_optuna_are_named(stored: str, port: int) -> None:
    set_version(stored, port, "v9.0.0.a")
    said = sm("status", "s", "--storage", stored, code=3)
    assert "a later version of Optuna (v9.0.0.a)" in said


@pytest.mark.parametrize(
    ("name", "version", "refused"),
    [
        ("PostgreSQL", (9, 6), "PostgreSQL 9.6, and Supermax needs 10 or later"),
        ("PostgreSQL", (10, 0), None),
        ("MariaDB", (10, 2, 44), "MariaDB 10.2.44, and Supermax needs 10.3 or later"),
        ("MariaDB", (10, 11, 18), None),
        ("MySQL", (5, 7, 44), "MySQL 5.7.44, and Supermax needs 8 or later"),
        ("MySQL", (8, 0, 36), None),
    ],
)
def test_a_server_that_is_too_old_is_named(
    name: str, version: tuple[int, ...], refused: str | None
) -> None:
    said = too_old(name, version)
    assert (said is None) == (refused is None)
    assert refused is None or refused in (said or "")


# Drivers.


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://x", "'nosuch' is not a kind of storage"),
        ("oracle://me:hunter22@h/x", "'oracle' is not a kind of storage that Supermax supports"),
        ("redis://h/0", "'redis' is not a kind of storage"),
        ("postgresql+nosuch://me:hunter22@h/x", "names a driver that SQLAlchemy does not have"),
        ("postgresql+asyncpg://me:hunter22@h/x", "asyncio driver, which Optuna cannot use"),
        ("postgresql+pg8000://me:hunter22@h/x", "driver pg8000 of postgresql+pg8000://me:***@h/x"),
        ("mysql+pymysql://me:hunter22@h/x", "is not installed. Run pip install pymysql."),
        ("mysql://me:hunter22@h/x", "pip install pymysql, and write mysql+pymysql://…."),
    ],
)
def test_a_driver_that_cannot_be_used_is_named(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pymysql", "MySQLdb", "pg8000"):
        monkeypatch.setitem(sys.modules, module, None)
    said = sm("status", "--storage", url, code=2)
    assert words in said
    assert SECRET not in said
    assert len(said.splitlines()) == 1


def test_psycopg_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, module, None)
    for url in ("postgresql+psycopg://h/x", "postgresql://h/x", "postgres://h/x"):
        with pytest.raises(UserError, match=r"Run pip install 'psycopg\[binary\]'"):
            existing(url)


@pytest.mark.parametrize("default", ["psycopg", "psycopg2"])  # of SQLAlchemy 2.1, and of 2.0
def test_a_url_without_a_driver_gets_an_installed_one(
    monkeypatch: pytest.MonkeyPatch, default: str
) -> None:
    monkeypatch.setattr("sqlalchemy.engine.URL.get_driver_name", lambda _: default)
    monkeypatch.setattr(servers, "_is_installed", lambda driver: driver == "psycopg")
    url = with_driver(make_url("postgresql://h/x"))
    expected = "postgresql" if default == "psycopg" else "postgresql+psycopg"
    assert url.drivername == expected


def test_errors_of_mysql_are_known_by_their_number() -> None:
    class Error(Exception):
        __module__ = "pymysql.err"

    def problem(number: int) -> DatabaseProblem | None:
        original = Error(number, "Access denied for user 'me'@'h' (using password: YES)")
        error = sqlalchemy.exc.OperationalError("SELECT 1", {}, original)
        assert database_errors.driver_message(error) == "Access denied for user 'me'@'h'"
        return problem_of(error)

    assert problem(1045) is DatabaseProblem.PASSWORD
    assert problem(1290) is DatabaseProblem.READ_ONLY
    assert problem(1213) is None  # a deadlock, which is retried
