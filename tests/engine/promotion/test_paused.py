"""Paused trials in runs that share a study, whose GPUs fail, or that shall get fewer trials."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest
from optuna.trial import TrialState, create_trial

import supermax
from supermax.engine import events
from supermax.engine.jobs.job import Job, time_spent
from supermax.engine.processes import gpu_probe
from supermax.engine.processes.gpu_probe import Probe
from supermax.engine.promotion.paused import PausedTrials
from supermax.engine.run.attempt_end import AttemptEnd
from supermax.engine.run.claimed import ClaimedTrials
from supermax.engine.run.coordinator import Coordinator
from supermax.engine.run.other_runs import OtherRuns
from supermax.engine.storage.history import TrialHistory
from supermax.engine.storage.run_folder import TrialFolder
from supermax.engine.trial.faults import Evidence, KilledFor, classify
from tests import ROOT
from tests.conftest import eventually
from tests.engine.programs import nine_epochs
from tests.engine.sharing.shared_runs import (
    created,
    execute,
    opened,
    other_run,
)
from tests.engine.storage.postgres import Proxy

pytestmark = pytest.mark.usefixtures("quick")
OTHER = other_run("other", "expires_at + 600")
LEASE = """
    INSERT INTO supermax_leases (trial_id, study_id, run, token, takeovers, offer, attempts)
    VALUES ({}, {}, 'other', 1, 0, 0, 1)"""


def pausing() -> supermax.Promotion:
    """Return a pruner that pauses every trial after one report."""
    return supermax.Promotion(
        max_reports=100, reduction_factor=100, min_agreement=-1, run_through=0
    )


def stop_after(count: int) -> Any:
    """Return a listener that stops the run once so many trials have paused."""
    paused: set[int] = set()

    def listen(event: events.Event) -> None:
        if isinstance(event, events.TrialPaused) and len(paused) < count:
            paused.add(event.number)
            if len(paused) == count:
                signal.raise_signal(signal.SIGINT)

    return listen


def test_gpu_does_not_wait_for_the_end_of_trials_that_paused_on_another(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supermax._util.system.count_gpus", lambda: None)
    monkeypatch.setattr(gpu_probe, "probe_gpu", lambda device, tag: Probe((0,)))

    def objective(trial: Any) -> float:
        if os.environ["CUDA_VISIBLE_DEVICES"] == "1":
            raise RuntimeError("CUDA error: unspecified launch failure")
        return nine_epochs(trial)

    seen: list[events.Event] = []
    supermax.optimize(
        study, objective, 8, workers=2, devices=["0", "1"], pruner=pausing(), progress=seen.append
    )
    kinds = [type(e) for e in seen if isinstance(e, events.OutOfService | events.TrialFinished)]
    assert kinds == [events.OutOfService, *[events.TrialFinished] * 8]


def test_fewer_trials_than_before_are_met_exactly(study: optuna.Study) -> None:
    """The paused trials that remain wait for a run with more trials."""
    supermax.optimize(study, nine_epochs, 12, pruner=pausing(), progress=stop_after(5))
    few = supermax.optimize(study, nine_epochs, 3, pruner=pausing(), progress=False)
    assert (few.finished, few.trials["RUNNING"]) == (3, 2)
    more = supermax.optimize(study, nine_epochs, 5, pruner=pausing(), progress=False)
    assert (more.finished, more.trials["RUNNING"]) == (5, 0)


def test_worst_paused_trials_end_first(study: optuna.Study) -> None:
    for x in (2.5, 9.0, 2.0, -9.0, 3.0):  # 2 is the best
        study.enqueue_trial({"x": x})
    supermax.optimize(study, nine_epochs, 12, pruner=pausing(), progress=stop_after(5))
    supermax.optimize(study, nine_epochs, 2, pruner=pausing(), progress=False)
    states = [trial.state.name for trial in study.trials]
    assert states == ["RUNNING", "PRUNED", "RUNNING", "PRUNED", "RUNNING"]


@pytest.mark.parametrize("promotion", [True, False])
def test_fewer_trials_than_two_runs_have_claimed(
    proxy: Proxy,
    tmp_path: Path,
    promotion: bool,
) -> None:
    """Neither waits for the other to end its trials."""
    limit = threading.Timer(15, os.kill, (os.getpid(), signal.SIGINT))
    with created(proxy) as study:
        supermax.optimize(
            study, nine_epochs, 12, run_dir=tmp_path, pruner=pausing(), progress=stop_after(2)
        )
        claimed = [study._storage.create_new_trial(study._study_id) for _ in range(2)]
        leased = [LEASE.format(trial_id, study._study_id) for trial_id in claimed]
        execute(proxy, OTHER, *leased)
        pruner = pausing() if promotion else optuna.pruners.NopPruner()
        limit.start()
        summary = supermax.optimize(
            study, nine_epochs, 2, run_dir=tmp_path, pruner=pruner, progress=False
        )
        limit.cancel()
    assert summary.stopped_by is None
    assert summary.finished == 2


def test_paused_trial_that_another_run_has_taken_over_is_awaited(
    proxy: Proxy, tmp_path: Path
) -> None:
    take = "UPDATE supermax_leases SET run = 'other', token = token + 1"
    notices: list[str] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.TrialPaused) and not notices:
            execute(proxy, OTHER, take)
        if isinstance(event, events.Notice):
            notices.append(event.text)
            with opened(proxy) as storage:
                (trial,) = storage.get_all_trials(storage.get_study_id_from_name("shared"))
                storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [1.0])

    with created(proxy) as study:
        summary = supermax.optimize(
            study, nine_epochs, 1, run_dir=tmp_path, pruner=pausing(), progress=listen
        )
    assert summary.finished == 1
    assert "taken over by another run" in "".join(notices)


@pytest.mark.slow
def test_paused_trials_of_a_killed_run_continue_in_the_run_that_takes_them_over(
    proxy: Proxy, tmp_path: Path
) -> None:
    env = {**os.environ, "MARKS": str(tmp_path / "marks"), "PACE": "0.05"}
    command = [sys.executable, "-m", "tests.engine.programs", "promotion", proxy.url, "12"]

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, str(tmp_path / name), "1"], cwd=ROOT, env=env)

    def paused() -> set[int]:
        ledgers = [TrialFolder(path) for path in (tmp_path / "first/trials").glob("*")]
        ends = {int(one.path.name): one.records()[-1:] for one in ledgers}
        return {number for number, end in ends.items() if end and end[0].get("paused")}

    killed = start("first")
    assert eventually(lambda: len(paused()) >= 3, within=30)
    killed.kill()
    killed.wait(30)
    waiting = paused()
    assert start("second").wait(60) == 0
    with opened(proxy) as storage:
        trials = storage.get_all_trials(storage.get_study_id_from_name("chaos"))
    assert len(trials) == 12
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    lines = (tmp_path / "marks").read_text().splitlines()
    trained = [tuple(map(int, line.split())) for line in lines]
    for trial in trials:
        epochs = [epoch for number, epoch in trained if number == trial.number]
        # Reports that arrive late are stored last.
        assert sorted(trial.intermediate_values) == sorted(set(epochs))
        assert trial.number not in waiting or len(epochs) == len(set(epochs))


@pytest.mark.parametrize("trusted", [True, False])
def test_suspect_run_prunes_no_paused_trials(trusted: bool, tmp_path: Path) -> None:
    """It may start new ones later, and continue these."""
    trials = claimed(may_start_new=trusted)
    trial = optuna.create_study().ask()
    trial.report(1.0, 1)
    job = Job(trial, TrialFolder(tmp_path))
    trials.paused.add(job)
    assert trials.to_prune() == ([job] if trusted else [])


def claimed(*, may_start_new: bool = True) -> ClaimedTrials:
    """Return the claimed trials of a run that has asked for all its trials."""
    study = optuna.create_study(pruner=pausing())
    progress: Any = SimpleNamespace(left=lambda _: None, has_room=lambda _: False)
    elsewhere: Any = SimpleNamespace(
        held=0, arriving=0, drop=lambda _: [], may_start_new=lambda: may_start_new
    )
    paused = PausedTrials(study, lambda: TrialHistory(study._study_id), lambda _: None)
    return ClaimedTrials(study, paused, progress, elsewhere, elsewhere)


def job_of(number: int, folder: Path) -> Job:
    trial = create_trial(state=TrialState.RUNNING)
    trial.number = number
    return Job(cast(Any, trial), TrialFolder(folder))


def test_paused_trial_that_is_taken_over_stays_paused_in_its_ledger(tmp_path: Path) -> None:
    """The other run may copy the ledger later."""
    job = job_of(1, tmp_path)
    job.folder.append({"launch": 1, "cell": 1})
    job.attempt = 1
    job.record_pause(2.0)
    spent = time_spent(job.folder.records())
    storage = SimpleNamespace(forget=lambda _: None, patience=SimpleNamespace())
    nothing: Any = None
    shown: list[events.Event] = []
    others = OtherRuns(None, nothing, cast(Any, storage), nothing, nothing, shown.append, nothing)
    others.give_up(job)
    assert job.folder.records()[-1]["paused"]
    assert time_spent(job.folder.records()) == spent


def test_machine_does_not_wait_for_trials_that_another_run_has_taken_over(tmp_path: Path) -> None:
    pool = SimpleNamespace(machines=lambda: {"one", "other"}, suspects=set[str]())
    nothing: Any = None
    end = AttemptEnd(nothing, nothing, nothing, cast(Any, pool), nothing, nothing, lambda _: None)
    jobs = [job_of(number, tmp_path) for number in range(3)]
    fault = classify(Evidence(killed_for=KilledFor.STALL, limit=1.0))
    assert fault is not None
    for job in jobs:
        job.machine = "one"
        end._machines.failed(job, fault)
    assert pool.suspects == {"one"}
    trials = claimed()
    trials.waiting = jobs
    coordinator = SimpleNamespace(
        trials=trials,
        others=SimpleNamespace(give_up=lambda _: None),
        attempt_end=end,
        progress=SimpleNamespace(recount_soon=lambda: None),
    )
    Coordinator.end_lost(cast(Any, coordinator), {job.trial._trial_id for job in jobs})
    assert pool.suspects == set()
    assert trials.waiting == []
