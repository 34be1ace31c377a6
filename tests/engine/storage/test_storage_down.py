"""Storages that disappear, concurrent runs on one study, and nested runs."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

import supermax
from supermax import EnvironmentFault, SupermaxError, UserError
from supermax.engine.storage.patience import Patience
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("quick")
PACKAGE = str(Path(supermax.__file__).parent)


def good(trial: Trial) -> float:
    return trial.suggest_float("x", 0, 1)


def refusal(kind: type[SupermaxError], *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        supermax.optimize(*args, progress=False, **options)
    inside = [entry for entry in caught.traceback if str(entry.path).startswith(PACKAGE)]
    assert len(inside) <= 1
    assert caught.value.__cause__ is None
    return str(caught.value)


# Before the run.


def remove(path: Path) -> None:
    path.unlink()


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_garbage(path: Path) -> None:
    path.write_bytes(b"no database " * 100)


def remove_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("accident", [remove, make_a_folder, make_garbage, remove_the_folder])
def test_a_study_whose_file_is_gone_cannot_be_opened(
    tmp_path: Path, accident: Callable[[Path], None]
) -> None:
    path = tmp_path / "home" / "study.db"
    path.parent.mkdir()
    study = optuna.create_study(storage=f"sqlite:///{path}", study_name="s")
    accident(path)
    before = sorted(tmp_path.rglob("*"))
    text = refusal(EnvironmentFault, study, good, 1)
    assert "The study 's' cannot be opened" in text
    assert "storage" in text
    after = [file for file in sorted(tmp_path.rglob("*")) if file.name != "lock"]
    assert [file for file in after if file.is_file()] == [f for f in before if f.is_file()]


def test_a_study_that_was_deleted_is_named(url: str) -> None:
    study = optuna.create_study(storage=url, study_name="s")
    optuna.delete_study(storage=url, study_name="s")
    assert "'s'" in refusal(UserError, study, good, 1)


def test_a_journal_that_is_gone_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    study = optuna.create_study(storage=JournalStorage(JournalFileBackend(str(path))))
    path.unlink()
    assert "cannot be opened" in refusal(EnvironmentFault, study, good, 1)
    assert not path.exists()


# During the run.


def unlink_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()


def drop_a_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE trial_user_attributes")


def delete_the_study(path: Path) -> None:
    optuna.delete_study(storage=f"sqlite:///{path}", study_name="test")


@pytest.mark.parametrize("accident", [unlink_all, drop_a_table, delete_the_study])
def test_damaged_sqlite_ends_the_run_with_a_message(
    study: optuna.Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accident: Callable[[Path], None],
) -> None:
    """Neither a success that cannot be read, nor the driver's traceback."""
    monkeypatch.setattr(Patience, "default", 2.0)

    def at_the_second(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 1:
            accident(tmp_path / "study.db")

    text = refusal(SupermaxError, study, good, 5, callbacks=[at_the_second])
    assert "stud" in text


def test_removed_journal_ends_the_run_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    study = optuna.create_study(storage=JournalStorage(JournalFileBackend(str(path))))

    def at_the_second(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 1:
            path.unlink()

    assert "study" in refusal(EnvironmentFault, study, good, 5, callbacks=[at_the_second])


# Two runs.

FIRST = """
import pathlib, sys, time, optuna, supermax
url, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def objective(trial):
    (folder / "started").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return trial.suggest_float("x", 0, 1)
study = optuna.load_study(storage=url, study_name="test")
supermax.optimize(study, objective, n_trials=1, progress=False)
"""


@contextlib.contextmanager
def at_work(url: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start another process that runs the study until it is released."""
    process = subprocess.Popen([sys.executable, "-c", FIRST, url, str(tmp_path)])
    try:
        assert eventually((tmp_path / "started").exists, within=30)
        yield process
    finally:
        (tmp_path / "go").touch()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_second_run_on_the_study_is_refused_while_the_first_lives(
    url: str, study: optuna.Study, tmp_path: Path
) -> None:
    before = [trial.state for trial in study.trials]
    with at_work(url, tmp_path) as first:
        text = refusal(UserError, study, good, 5)
        assert "Another run is at work on the study 'test'" in text
        assert f"process {first.pid}" in text
        text = refusal(UserError, study, good, 5, run_dir=tmp_path / "elsewhere")
        assert f"process {first.pid}" in text
        assert not (tmp_path / "elsewhere").exists()
        assert [trial.state for trial in study.trials] == [*before, TrialState.RUNNING]
    summary = supermax.optimize(study, good, 3, progress=False)  # free again
    assert summary.trials["COMPLETE"] == 3


@pytest.mark.slow
def test_two_studies_in_one_database_run_at_the_same_time(
    url: str, study: optuna.Study, tmp_path: Path
) -> None:
    other = optuna.create_study(storage=url, study_name="other")
    with at_work(url, tmp_path):
        summary = supermax.optimize(other, good, 4, workers=2, progress=False)
        assert summary.trials["COMPLETE"] == 4
        assert study.trials[0].state is TrialState.RUNNING
    assert study.trials[0].state is TrialState.COMPLETE


@pytest.mark.slow
def test_a_copy_of_a_database_is_a_study_of_its_own(
    url: str, study: optuna.Study, tmp_path: Path
) -> None:
    """`cp study.db other.db`, then both at the same time: two files, two studies."""
    supermax.optimize(study, good, 1, progress=False)
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "other.db"),))
    other = optuna.load_study(storage=f"sqlite:///{tmp_path}/other.db", study_name="test")

    def run_the_copy(_: optuna.Study, trial: FrozenTrial) -> None:
        supermax.optimize(other, good, 3, progress=False)

    supermax.optimize(study, good, 2, callbacks=[run_the_copy], progress=False)
    assert [len(study.trials), len(other.trials)] == [2, 3]


def test_a_run_inside_a_callback_of_the_same_study_is_refused(
    url: str, study: optuna.Study
) -> None:
    said = []

    def again(given: optuna.Study, _: FrozenTrial) -> None:
        said.append(refusal(UserError, given, good, 5))
        loaded = optuna.load_study(storage=url, study_name="test")
        said.append(refusal(UserError, loaded, good, 5))

    supermax.optimize(study, good, 1, callbacks=[again], progress=False)
    assert "This study is being optimized already" in said[0]
    assert "Another run is at work on the study 'test'" in said[1]
    assert study.trials[0].state is TrialState.COMPLETE


# A run inside a trial.


def nested(trial: Trial) -> float:
    inner = optuna.create_study(study_name="inner")
    summary = supermax.optimize(inner, good, 2, workers=2, progress=False)
    trial.set_user_attr("inner", summary.trials["COMPLETE"])
    return inner.best_value


def test_a_run_on_another_study_inside_a_trial_works(study: optuna.Study) -> None:
    supermax.optimize(study, nested, 1, progress=False)
    (trial,) = study.trials
    assert trial.state is TrialState.COMPLETE
    assert trial.user_attrs["inner"] == 2


def nested_on_itself(trial: Trial) -> float:
    try:
        supermax.optimize(trial.study, good, 2, progress=False)
    except Exception as error:
        trial.set_user_attr("said", [type(error).__name__, str(error)])
    return 1.0


def test_run_on_its_own_study_inside_a_trial_is_refused(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    summary = supermax.optimize(study, nested_on_itself, 1, progress=False)
    assert summary.trials["COMPLETE"] == 1
    assert summary.faults == {}
    name, text = study.trials[0].user_attrs["said"]
    assert name in ("UserError", "RuntimeError")
    assert "trial" in text
    assert not (tmp_path / "data").exists()
