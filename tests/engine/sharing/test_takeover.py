"""Trials taken over from other runs: their files, and the numbers of their attempts."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

import supermax
from supermax.engine import events
from supermax.engine.jobs.job import Attempt, Job
from supermax.engine.run.requests import RequestHandler
from supermax.engine.run.session import IDENTITY
from supermax.engine.sharing import takeover
from supermax.engine.sharing.takeover import Takeover
from supermax.engine.storage.lease_tables import create_tables, session_of
from supermax.engine.storage.leases import Expired, Leases
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder, new_identity
from supermax.engine.trial.branch_names import Names
from tests.conftest import eventually
from tests.engine.sharing.shared_runs import (
    created,
    execute,
    leases_are_renewed,
    opened,
    other_run,
)
from tests.engine.storage.postgres import Proxy


class Machine:
    """Run folder of a machine, whose trials others may take over."""

    def __init__(self, path: Path, study: optuna.Study, checkpoints: str | None = None) -> None:
        self.folder = StudyFolder(path)
        self.claim = self.folder.open("identity", "study", str(path))
        self.folder.checkpoints = checkpoints
        self._study = study

    def launch(self, job: Job) -> None:
        """Launch an attempt that writes a checkpoint of its own name."""
        job.attempt += 1
        job.folder.append({"launch": job.attempt, "cell": 1})
        job.folder.checkpoint.mkdir(exist_ok=True)
        (job.folder.checkpoint / f"of-{self.folder.path.name}").touch()

    def begin_to_take(self, other: Machine) -> None:
        """Take a trial, and end before its files have arrived."""
        lost = Expired(0, other.claim, 1, 0, 1, False, str(other.folder.path), "far")
        one = Takeover(lost, self._study, self.folder, lambda: None)
        one.start()
        assert eventually(lambda: one.done)

    def take(self, other: Machine, attempts: int, *, offered: bool = False) -> Job:
        lost = Expired(0, other.claim, 1, 0, attempts, offered, str(other.folder.path), "far")
        one = Takeover(lost, self._study, self.folder, lambda: None)
        one.start()
        assert eventually(lambda: one.done)
        one.finish()
        return one.job


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study()  # in memory, where ids begin with 0


@pytest.fixture
def machines(study: optuna.Study, tmp_path: Path) -> list[Machine]:
    study.ask()
    return [Machine(tmp_path / name, study) for name in "abc"]


def launches(job: Job) -> list[int]:
    return [line["launch"] for line in job.folder.records() if "launch" in line]


def begun(machine: Machine, study: optuna.Study, attempts: int = 1) -> Job:
    job = Job(optuna.trial.Trial(study, 0), machine.folder.trial(0))
    for _ in range(attempts):
        machine.launch(job)
    return job


@pytest.mark.parametrize("readable", [True, False])
def test_attempts_are_numbered_across_two_takeovers(
    study: optuna.Study, machines: list[Machine], readable: bool
) -> None:
    a, b, c = machines
    begun(a, study)
    second = b.take(a if readable else c, 1)
    b.launch(second)
    b.launch(second)
    assert second.attempt == 3
    third = c.take(b, 3)
    assert third.attempt == 3
    assert [fault.name for fault in [*third.faults, third.last_fault] if fault] == [
        "coordinator lost"
    ] * 3
    c.launch(third)
    assert launches(third) == ([1, 2, 3, 4] if readable else [2, 3, 4])


def test_a_trial_that_comes_back_keeps_its_history(
    study: optuna.Study, machines: list[Machine]
) -> None:
    """The other run could not read this one's folder; this one can read that of the other."""
    a, b, c = machines
    begun(a, study, attempts=2)
    second = b.take(c, 2)
    b.launch(second)
    again = a.take(b, 3)
    assert launches(again) == [1, 2, 3]
    assert again.attempt == 3
    assert [path.name for path in again.folder.checkpoint.iterdir()] == ["of-b"]  # not mixed
    assert not a.folder.arriving.exists()


def test_a_trial_that_comes_back_from_a_folder_that_cannot_be_read(
    study: optuna.Study, machines: list[Machine]
) -> None:
    a, _, c = machines
    begun(a, study, attempts=2)
    shutil.rmtree(c.folder.path)
    again = a.take(c, 5)
    assert launches(again) == [1, 2]
    assert again.attempt == 5
    assert len(again.faults) == 4
    assert again.last_fault is not None


def test_attempts_on_a_machine_that_offered_the_trial_do_not_count(
    study: optuna.Study, machines: list[Machine]
) -> None:
    a, _, c = machines
    shutil.rmtree(c.folder.path)
    job = a.take(c, 3, offered=True)
    assert (job.attempt, job.faults, job.last_fault) == (3, [], None)


def test_a_paused_trial_stays_paused(study: optuna.Study, machines: list[Machine]) -> None:
    a, b, _ = machines
    begun(a, study).record_pause(1.0)
    job = b.take(a, 1)
    assert job.paused
    assert job.last_fault is None
    assert [path.name for path in job.folder.checkpoint.iterdir()] == ["of-a"]


@pytest.mark.parametrize("next_run", [0, 2], ids=["the one that lost them", "a third one"])
def test_files_that_did_not_arrive_come_from_the_run_that_has_them(
    study: optuna.Study, machines: list[Machine], next_run: int
) -> None:
    a, b, _ = machines
    begun(a, study)
    b.begin_to_take(a)
    job = machines[next_run].take(b, 1)
    assert launches(job) == [1]
    assert [path.name for path in job.folder.checkpoint.iterdir()] == ["of-a"]
    assert not job.folder.takeover.exists()


def test_run_that_stops_during_a_takeover_continues_from_the_checkpoint(
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_files = takeover.copy_files

    def stop(*_: object) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return not eventually(lambda: False, within=10)

    def objective(trial: Any) -> float:
        return float((trial.checkpoint_dir / "value").read_text())

    with created(proxy) as study:
        gone = StudyFolder(tmp_path / "gone")
        identity = new_identity()
        study._storage.set_study_system_attr(study._study_id, IDENTITY, identity)
        claim = gone.open(identity, "shared", "")
        trial_id = study._storage.create_new_trial(study._study_id)
        Job(optuna.trial.Trial(study, trial_id), gone.trial(0)).record_stop()
        gone.trial(0).checkpoint.mkdir()
        (gone.trial(0).checkpoint / "value").write_text("7")
        with opened(proxy) as storage:
            create_tables(storage)
            lost = Leases(storage, study._study_id, claim, 0.0, None)
            lost.register(gone.path, 1, "")
            with session_of(storage) as session:
                lost.add(session, trial_id)
        monkeypatch.setattr(takeover, "copy_files", stop)
        run: dict[str, Any] = {"lease": 0.2, "run_dir": tmp_path / "own", "progress": False}
        assert supermax.optimize(study, objective, 1, **run).stopped_by == "interrupt"
        monkeypatch.setattr(takeover, "copy_files", copy_files)
        assert supermax.optimize(study, objective, 1, **run).trials["COMPLETE"] == 1
        assert study.trials[0].value == 7


def test_shared_checkpoints_are_not_copied(study: optuna.Study, tmp_path: Path) -> None:
    study.ask()
    a, b = (Machine(tmp_path / name, study, str(tmp_path / "shared")) for name in "ab")
    begun(a, study)
    job = b.take(a, 1)
    assert launches(job) == [1]
    assert not job.folder.checkpoint.exists()


def test_leases_are_renewed_while_files_are_copied(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[bool] = []

    def look(*_: object) -> None:
        renewed.append(leases_are_renewed(proxy))

    monkeypatch.setattr(takeover, "find_files", look)
    lose = "UPDATE supermax_leases SET run = 'gone', token = token + 1"
    attempts: list[int] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.TrialStarted):
            attempts.append(event.attempt)
            if attempts == [1]:
                execute(proxy, other_run("gone", expires_at="0"), lose)

    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            eventually(lambda: False, within=60)  # until the run has noticed, and ends it
        return 1.0

    with created(proxy) as study:
        supermax.optimize(
            study, objective, 1, lease=1.0, run_dir=tmp_path / "run", progress=listen
        )
        assert [trial.value for trial in study.trials] == [1.0]
    assert renewed == [True]
    assert attempts == [1, 2]


@pytest.mark.parametrize(("reported", "expected"), [({}, [0, 1, 2]), ({1: 1.5}, [0, 1])])
def test_reports_between_the_copies_of_curve_and_checkpoint_are_stored(
    study: optuna.Study, machines: list[Machine], reported: dict[int, float], expected: list[int]
) -> None:
    """The cell of the run that lost the trial may run until that run knows."""
    a, b, _ = machines
    first = begun(a, study)
    first.folder.append_report(1, 0, 1.0)
    job = b.take(a, 1)
    for step in (1, 2):
        first.folder.append_report(1, step, 1.0)
    storage = PatientStorage(study._storage, study, file=None, patience=Patience(lambda _: None))
    requests = RequestHandler(study, storage, Names([]))
    assert requests.store_missed_reports(job) is None
    attempt = Attempt(job, cast(Any, None))
    job.attempt += 1
    for step, value in reported.items():
        requests.store_report(attempt, step, value)
    requests.store_late_reports(attempt)
    values = study.trials[0].intermediate_values
    assert sorted(values) == expected
    assert all(values[step] == value for step, value in reported.items())
