"""Optuna's journal files as storages of studies."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

import supermax
from supermax.engine.storage import journal
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.locks import Lock
from supermax.errors import EnvironmentFault, UserError
from supermax.results.report.serving import make_site, server
from supermax.results.tracking.source import open_tracked_study, source_of
from supermax.studies import all_studies, existing, file_of, make_storage, refuse_while_running
from tests.few import a_few
from tests.ui.cli.helping import sm

SPACE = "name: plain\nparameters: {x: {type: float, low: 0, high: 1}}"
WIDER = SPACE.replace("high: 1", "high: 2")
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def searched(storage: str, trials: int = 2) -> optuna.Study:
    space = supermax.space.loads(SPACE)
    study = supermax.open_study(space, storage=storage, quiet=True)

    def objective(trial: Any) -> float:
        return float(space.sample(trial)["x"])

    supermax.optimize(study, objective, n_trials=trials, progress=False)
    return study


@pytest.mark.parametrize(
    "name", a_few(["a.journal", "runs/a.log", "journal:///runs/a", "A.LOG"], 2)
)
def test_a_storage_named_as_a_journal_is_one(name: str, here: Path) -> None:
    study = searched(name)
    file = here / name.removeprefix("journal:///")
    plain = JournalStorage(JournalFileBackend(str(file)))
    assert len(optuna.load_study(study_name="plain", storage=plain).trials) == 2
    assert (file.parent / f"{file.name}.supermax" / "plain" / "run.json").is_file()
    assert len(searched(name, 3).trials) == 3
    assert len(searched(str(file), 3).trials) == 3  # by what is in it, whatever it is called
    assert open_tracked_study(source_of(study)).trials == study.trials
    assert searched(f"journal:///{file}", 3).trials[0].params == study.trials[0].params


def test_reading_commands_open_a_journal(here: Path) -> None:
    searched("a.journal")
    where = ("--storage", "a.journal")
    assert [row["name"] for row in json.loads(sm("study", "list", "--json", *where))] == ["plain"]
    assert len(json.loads(sm("best", "--json", *where))) == 2
    assert json.loads(sm("show", "1", "--json", *where))["state"] == "COMPLETE"
    assert "reached" in sm("status", *where)
    (here / "wider.yaml").write_text(WIDER)
    assert "plain@2" in sm("study", "migrate", "plain", "wider.yaml", *where)
    assert "plain@2" in sm("report", "plain", "-o", "out.html", *where)
    assert "Nothing to remove" in sm("clean", "--dry-run", *where)
    assert "a.journal holds 2 studies" in sm("doctor", "--preset", "demo", *where)
    assert "is deleted" in sm("study", "delete", "plain@2", "--yes", *where)


@pytest.mark.parametrize("name", ["a.journal", "a.log", "journal:///a", "deep/a.journal"])
def test_reading_commands_create_no_journal(name: str, here: Path) -> None:
    assert "There is no file" in sm("best", "--storage", name, code=2)
    assert list(here.iterdir()) == []


def test_files_of_other_programs_are_not_changed(here: Path) -> None:
    log = here / "tune.log"
    log.write_text("[supermax] what nohup wrote\n")
    assert "holds no studies" in sm("best", "--storage", "tune.log", code=2)
    with pytest.raises(UserError, match="some other program's"):
        make_storage("tune.log")
    assert log.read_text() == "[supermax] what nohup wrote\n"
    optuna.create_study(storage="sqlite:///old.log", study_name="s")
    assert isinstance(make_storage("old.log")._backend, RDBStorage)  # type: ignore[attr-defined]
    (here / "empty.journal").touch()
    with pytest.raises(UserError, match="holds no studies"):
        existing("empty.journal")


def test_settings_may_name_one_beside_their_file(here: Path) -> None:
    from supermax.search.settings import resolve
    from supermax.space.presets import presets

    (here / "sub").mkdir()
    (here / "sub" / "s.yaml").write_text("agent: criteria\nstorage: mine.journal\n")
    settings = resolve(None, file=here / "sub" / "s.yaml", presets=presets()).settings
    assert isinstance(make_storage(settings.storage_address), JournalStorage)
    assert (here / "sub" / "mine.journal").is_file()


def test_a_dashboard_of_a_journal() -> None:
    searched("a.journal")
    site = make_site(existing("a.journal"), "a.journal")
    with server(site, 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for path, words in (("/", "plain"), ("/api/studies", "plain"), ("/report/0", "plain")):
            connection = http.client.HTTPConnection("127.0.0.1", listening.server_port)
            cookie = f"supermax-{listening.server_port}={site.token}"
            connection.request("GET", path, headers={"Cookie": cookie})
            assert words in connection.getresponse().read().decode()
            connection.close()
        listening.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_search_is_tracked_into_mlflow_from_a_journal(here: Path) -> None:
    small = ("--trials", "2", "--set", "epochs=1", "--set", "data.posts=60")
    where = ("--storage", "a.journal")

    def said(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "supermax", *args], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    tuned = said("tune", "criteria", *small, *where, "--track", "sent.db")
    if "not in MLflow" in tuned:  # a busy machine: the search has not waited for it
        tuned = said("track", "criteria", *where, "--uri", "sent.db")
    later = said("track", "criteria", *where, "--uri", "later.db")
    assert "not in MLflow" not in tuned + later
    assert "2 trials of 'criteria' sent" in later


def test_checking_for_a_journal_keeps_locks_on_a_database(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops all POSIX locks of the process on it."""
    file = tmp_path / "studies.db"
    optuna.create_study(storage=f"sqlite:///{file}", study_name="s")
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        assert database.execute("SELECT count(*) FROM studies").fetchone() == (1,)
        assert not journal.is_journal(file)
        assert journal.is_foreign(file)
        # Another process may leave write-ahead logging only when nobody else is there.
        code = (
            "import sqlite3, sys\n"
            "db = sqlite3.connect(sys.argv[1], timeout=0.1)\n"
            "print(db.execute('PRAGMA journal_mode=DELETE').fetchone()[0])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False
        )
        assert "locked" in done.stderr, done.stdout


def test_link_to_a_journal_is_the_same_location(here: Path) -> None:
    searched("a.journal")
    (here / "link.journal").symlink_to("a.journal")
    (plain,), (linked,) = (all_studies(existing(f"{name}.journal")) for name in ("a", "link"))
    assert find_location(plain) == find_location(linked)
    backends = [study._storage._backend for study in (plain, linked)]  # type: ignore[attr-defined]
    assert backends[0]._lock._lock_file == backends[1]._lock._lock_file
    lock = Lock(find_location(plain).run_dir / "lock", "plain")
    with pytest.raises(UserError, match="meanwhile"):
        refuse_while_running(linked)
    lock.release()


@pytest.mark.parametrize("name", ["pipe", "pipe.db", "pipe.journal", "sqlite:///pipe"])
def test_pipe_does_not_block(name: str, here: Path) -> None:
    os.mkfifo(here / name.removeprefix("sqlite:///"))
    assert "is a pipe" in sm("best", "--storage", name, code=2)
    with pytest.raises(UserError, match="is a pipe"):
        make_storage(name)


def test_stale_lock_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searched("a.journal")
    storage = existing("a.journal")
    assert isinstance(storage, JournalStorage)
    lock = storage._backend._lock  # type: ignore[attr-defined]
    lock.grace_period = 0.01
    (here / "a.journal.lock").symlink_to("a.journal")
    os.utime(here / "a.journal.lock", (1, 1), follow_symlinks=False)
    storage.set_study_user_attr(0, "a", 1)
    assert f"Waiting for {here / 'a.journal.lock'}, which" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["{broken", '{"op_code":99,"worker_id":"w"}', '{"op_code":4,"worker_id":"w"}', "[1]"]
)
def test_damaged_line_is_reported_by_number(line: str, here: Path) -> None:
    searched("a.journal")
    lines = (here / "a.journal").read_text().splitlines()
    (here / "a.journal").write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")
    with pytest.raises(EnvironmentFault, match="line 4 of the journal is damaged"):
        existing("a.journal")


@pytest.mark.parametrize("name", ["journal://x", "Journal:///x"])
def test_a_journal_has_three_slashes(name: str, here: Path) -> None:
    assert "three slashes" in sm("best", "--storage", name, code=2)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sqlite:///x.db", "x.db"),
        ("sqlite+pysqlite:///x.db", "x.db"),
        ("sqlite:///file:x%20y?mode=rwc&uri=true", "x y"),
        ("journal:///x", "x"),
        ("x", "x"),
        ("sqlite:///file:x?mode=memory&uri=true", None),
        ("sqlite:///:memory:", None),
        ("postgresql://u:p@h/d", None),
    ],
)
def test_which_file_a_storage_means(name: str, file: str | None, here: Path) -> None:
    assert file_of(name) == (None if file is None else here / file)
    if file is not None:
        assert "There is no file" in sm("best", "--storage", name, code=2)
        assert list(here.iterdir()) == []


def test_a_password_in_what_is_no_address_is_not_shown() -> None:
    assert "bob:***@h/db" in sm("best", "--storage", "bob:s3cr3t@h/db", code=2)
