"""Run folders that are full or read-only for a while: the run waits and loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.trial import FrozenTrial, Trial

import supermax
from supermax.engine.events import Event, Notice, TrialFinished
from supermax.engine.storage import patience, rdb
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.run_folder import StudyFolder
from supermax.ui.display.plain import PlainDisplay

pytestmark = pytest.mark.usefixtures("quick")
REPORTS = {0: 0.0, 1: 1.0, 2: 2.0}


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small"):
        yield tmp_path / "small" / "run"


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_QUIET", 0.1)


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def reporting(trial: Trial) -> float:
    for step, value in REPORTS.items():
        trial.report(value, step)
    return 1.0


class Listener:
    """Listener that records notices, ends the fault after the first one, and checks that outcomes
    are in the folder before they are in the study."""

    def __init__(self, run_dir: Path, mend: Callable[[], object]) -> None:
        self.said: list[str] = []
        self.written: list[bool] = []
        self.folder = StudyFolder(run_dir)
        self.mend = mend

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.said.append(event.text)
            self.mend()
        if isinstance(event, TrialFinished):
            self.written.append(self.folder.trial(event.number).outcome() is not None)


def whole(run_dir: Path, trials: list[FrozenTrial]) -> bool:
    """Assert that the outcome of a trial is in its folder."""
    for trial in trials:
        folder = StudyFolder(run_dir).trial(trial.number)
        outcome = folder.outcome()
        assert outcome is not None
        assert outcome.values == (1.0,)
        assert folder.curve() == trial.intermediate_values == REPORTS
        assert [r["launch"] for r in folder.records() if "launch" in r] == [1]
    return True


@pytest.mark.usefixtures("talkative")
def test_run_waits_for_a_disk_that_fills_up_between_trials(
    study: optuna.Study, run_dir: Path
) -> None:
    ballast = run_dir.parent / "ballast"
    listener = Listener(run_dir, lambda: ballast.unlink(missing_ok=True))

    def after(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 0:
            fill(ballast)

    supermax.optimize(study, reporting, 4, run_dir=run_dir, progress=listener, callbacks=[after])
    (said,) = listener.said
    assert said == f"Waiting for {run_dir}/trials/00001 to be writable: No space left on device."
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert whole(run_dir, study.trials)


@pytest.mark.usefixtures("talkative")
def test_outcome_on_a_full_disk_is_in_the_folder_before_the_study(
    study: optuna.Study, run_dir: Path
) -> None:
    ballast = run_dir.parent / "ballast"

    def objective(trial: Trial) -> float:
        trial.suggest_float("x", 0, 1)
        if trial.number == 1:
            fill(ballast)
        return reporting(trial)

    listener = Listener(run_dir, lambda: ballast.unlink(missing_ok=True))
    summary = supermax.optimize(study, objective, 3, run_dir=run_dir, progress=listener)
    assert summary.faults == {}
    assert listener.written == [True] * 3
    assert listener.said[0].startswith(f"Waiting for {run_dir}/trials/00001 to be writable")
    assert whole(run_dir, study.trials)


def test_full_disk_ends_the_run_with_a_message_and_the_next_resumes(
    study: optuna.Study, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "default", 0.5)
    ballast = run_dir.parent / "ballast"

    def after(*_: object) -> None:
        fill(ballast)

    words = r"could not be written for \d+ s \(No space left .* call again"
    with pytest.raises(supermax.EnvironmentFault, match=words):
        supermax.optimize(study, reporting, 5, run_dir=run_dir, progress=False, callbacks=[after])
    assert study.trials[0].state.name == "COMPLETE"
    ballast.unlink()
    summary = supermax.optimize(study, reporting, 5, run_dir=run_dir, progress=False)
    assert summary.trials["COMPLETE"] == 5


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Return a function that makes the folder read-only, and one that makes it writable."""
    if os.getuid():
        folder.mkdir(parents=True)
        yield lambda: folder.chmod(0o500), lambda: folder.chmod(0o700)
        return

    def remount(how: str) -> Callable[[], None]:
        command = ["mount", "-o", f"remount,{how}", str(folder)]
        return lambda: subprocess.run(command, check=True) and None

    with small_disk(folder):
        yield remount("ro"), remount("rw")


@pytest.mark.usefixtures("talkative")
def test_run_waits_for_a_read_only_run_folder(
    study: optuna.Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    with read_only(run_dir / "trials") as (lock, unlock):
        listener = Listener(run_dir, unlock)
        plain = PlainDisplay(sys.stdout)

        def both(event: Event) -> None:
            listener(event)
            plain(event)

        def after(_: optuna.Study, trial: FrozenTrial) -> None:
            if trial.number == 0:
                lock()

        supermax.optimize(study, reporting, 3, run_dir=run_dir, progress=both, callbacks=[after])
        assert whole(run_dir, study.trials)
    assert len(listener.said) == 1
    assert listener.said[0] in capsys.readouterr().out


def test_folder_replaced_by_a_file_is_an_error_at_once(
    study: optuna.Study, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"

    def after(_: optuna.Study, trial: FrozenTrial) -> None:
        (run_dir / "trials").rename(tmp_path / "moved")
        (run_dir / "trials").write_text("")

    with pytest.raises(supermax.EnvironmentFault, match="Not a directory"):
        supermax.optimize(study, reporting, 3, run_dir=run_dir, progress=False, callbacks=[after])


def test_read_only_sqlite_file_is_transient_during_a_run(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "a.db").close()
    engine = sqlalchemy.create_engine(f"sqlite:///file:{tmp_path}/a.db?mode=ro&uri=true")
    with pytest.raises(sqlalchemy.exc.OperationalError) as caught, engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a)")
    engine.dispose()
    assert rdb.is_transient(caught.value, underway=True)
    assert not rdb.is_transient(caught.value)  # at the start of a run the user can fix it at once


def test_torn_line_does_not_hide_the_next(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path).trial(0)
    folder.append({"launch": 1})
    with (tmp_path / "trials" / "00000" / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({"launch": 2})[:5])
    folder.append({"launch": 2})
    assert [record["launch"] for record in folder.records()] == [1, 2]
