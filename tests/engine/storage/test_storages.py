"""Storages: SQLite, journal files, memory; locks, torn lines, unusual names."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import Trial, TrialState

import supermax
from supermax.engine.events import Event, Notice, TrialStarted
from supermax.engine.storage import patience
from tests.few import a_few

pytestmark = pytest.mark.usefixtures("quick")


def run(study: optuna.Study, n_trials: int, objective: Any = None, **options: Any) -> Any:
    options.setdefault("progress", False)
    return supermax.optimize(study, objective or quadratic, n_trials, **options)


def quadratic(trial: Trial) -> float:
    trial.report(0.5, 0)
    trial.set_user_attr("where", "here")
    return trial.suggest_float("x", -10, 10) ** 2


def check(study: optuna.Study, n_trials: int) -> None:
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * n_trials
    for trial in study.trials:
        assert trial.value == trial.params["x"] ** 2
        assert trial.intermediate_values == {0: 0.5}
        assert trial.user_attrs["where"] == "here"


def seen_by_plain_optuna(make_storage: str, study_name: str) -> str:
    """Return what a process without Supermax reads."""
    code = (
        "import optuna\nfrom optuna.storages import *\nfrom optuna.storages.journal import *\n"
        f"study = optuna.load_study(study_name={study_name!r}, storage={make_storage})\n"
        "print([t.state.name for t in study.trials])\n"
        "study.optimize(lambda t: t.suggest_float('x', -10, 10), n_trials=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", a_few(["sqlite", "journal", "journal, open lock", "memory"], 2))
def test_every_storage_holds_the_study(tmp_path: Path, kind: str) -> None:
    journal = str(tmp_path / "study.log")
    storage: Any = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/study.db",
        "journal": lambda: JournalStorage(JournalFileBackend(journal)),
        "journal, open lock": lambda: JournalStorage(
            JournalFileBackend(journal, lock_obj=JournalFileOpenLock(journal))
        ),
        "memory": InMemoryStorage,
    }[kind]()
    study = optuna.create_study(storage=storage, study_name="s")
    before = study._storage
    summary = run(study, 3, workers=2)
    check(study, 3)
    assert study._storage is before
    run(study, 5)
    check(study, 5)
    beside = {"sqlite": "study.db.supermax", "memory": None}.get(kind, "study.log.supermax")
    if beside:
        assert summary.run_dir == tmp_path / beside / "s"
    assert (summary.run_dir / "run.json").is_file()


# SQLite.


def journal_mode(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def test_the_run_folder_follows_the_storage_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    study = optuna.create_study(storage="sqlite:///study.db", study_name="s")
    monkeypatch.chdir(elsewhere)  # the open study still lives in `home`
    summary = run(study, 2)
    check(study, 2)
    assert list(elsewhere.iterdir()) == []
    assert summary.run_dir == home / "study.db.supermax" / "s"


def test_a_relative_address_is_the_same_study_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path)
    first = run(optuna.create_study(storage="sqlite:///study.db", study_name="s"), 1)
    monkeypatch.chdir(tmp_path / "deeper")
    again = optuna.load_study(storage="sqlite:///../study.db", study_name="s")
    second = run(again, 2)
    assert os.path.realpath(second.run_dir) == os.path.realpath(first.run_dir)
    assert len(list(second.run_dir.glob("trials/*"))) == 2


def test_an_explicit_run_dir_is_used_and_made(study: optuna.Study, tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    assert run(study, 2, run_dir=str(wanted)).run_dir == wanted
    assert sorted(path.name for path in (wanted / "trials").iterdir()) == ["00000", "00001"]


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with contextlib.closing(connection):
        yield connection


def impatient(path: Path) -> optuna.Study:
    """Return a study whose connections have no busy timeout, so that tests need not wait."""
    storage = RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 0.05}})
    return optuna.create_study(storage=storage, study_name="s")


def test_run_turns_on_write_ahead_logging(study: optuna.Study, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    run(study, 1)
    assert journal_mode(path) == "wal"
    with connected(path) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM trials").fetchone()
        run(study, 4, workers=2)
        assert reader.execute("SELECT count(*) FROM trials").fetchone() == before
        reader.execute("ROLLBACK")
    check(study, 4)


def test_write_ahead_logging_is_retried_after_a_blocking_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_QUIET", 0.0)
    path = tmp_path / "study.db"
    study = impatient(path)
    notices = []
    with connected(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM trials").fetchone()

        def let_go(event: Event) -> None:
            if isinstance(event, Notice) and reader.in_transaction:
                notices.append(event.text)
                reader.execute("ROLLBACK")

        run(study, 1, progress=let_go)
    assert any("database is locked" in text for text in notices)
    run(study, 2)
    check(study, 2)
    assert journal_mode(path) == "wal"


def test_run_waits_for_another_writer_and_emits_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_QUIET", 0.1)
    study = impatient(tmp_path / "study.db")
    notices = []
    with connected(tmp_path / "study.db") as writer:

        def lock_and_let_go(event: Event) -> None:
            if isinstance(event, TrialStarted) and event.number == 1:
                writer.execute("BEGIN IMMEDIATE")
            if isinstance(event, Notice):
                notices.append(event.text)
                writer.execute("COMMIT")

        run(study, 4, workers=2, progress=lock_and_let_go)
    assert notices == ["Waiting for the study's storage: database is locked."]
    check(study, 4)


@pytest.mark.slow
def test_run_waits_longer_than_sqlites_busy_timeout(study: optuna.Study, tmp_path: Path) -> None:
    with connected(tmp_path / "study.db") as writer:
        letting_go = threading.Timer(7.0, writer.execute, ("COMMIT",))

        def lock(event: Event) -> None:
            if isinstance(event, TrialStarted) and event.number == 0:
                writer.execute("BEGIN IMMEDIATE")
                letting_go.start()

        summary = run(study, 2, progress=lock)
        letting_go.join()
    assert summary.faults == {}
    assert summary.seconds > 6.0
    check(study, 2)


# Journal files.


def journal(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def tear(path: Path) -> None:
    """Append what a writer leaves that is killed in the middle of a line."""
    with path.open("ab") as file:
        file.write(TORN)


TORN = b'{"op_code":4,"worker_id":"x","study_id":0,"datetime_st'


@pytest.mark.parametrize("when", a_few(["load_study", "create_study", "during the run"]))
def test_torn_journal_is_repaired(tmp_path: Path, when: str) -> None:
    """Torn before the study is opened, in either way a program may open it, or while in use."""
    path = tmp_path / "study.log"
    run(optuna.create_study(storage=journal(path), study_name="s"), 1)
    callbacks = []
    if when == "during the run":
        callbacks.append(lambda _, trial: tear(path) if trial.number == 1 else None)
    else:
        tear(path)
    if when == "create_study":
        again = optuna.create_study(storage=journal(path), study_name="s", load_if_exists=True)
    else:
        again = optuna.load_study(storage=journal(path), study_name="s")
    run(again, 4, callbacks=callbacks)
    check(optuna.load_study(storage=journal(path), study_name="s"), 4)
    assert TORN in (tmp_path / "study.log.torn").read_bytes()
    storage = f"JournalStorage(JournalFileBackend({str(path)!r}))"
    assert seen_by_plain_optuna(storage, "s") == str(["COMPLETE"] * 4)
    assert len(optuna.load_study(storage=journal(path), study_name="s").trials) == 5


# Names, and studies that come again.

NAMES = ["a/b", "../up", "..", "", "größe 名前", "x" * 300, "x" * 299 + "y", "tab\tnew\nline"]


@pytest.mark.slow
def test_any_study_name_has_a_folder_of_its_own(url: str, tmp_path: Path) -> None:
    folders = set()
    for name in NAMES:
        study = optuna.create_study(storage=url, study_name=name)
        folders.add(run(study, 0).run_dir)
    assert len(folders) == len(NAMES)
    assert {folder.parent for folder in folders} == {tmp_path / "study.db.supermax"}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"study.db.supermax"}
