"""Trials that fail here are offered to other runs; a run whose trials succeed elsewhere is
quarantined."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from optuna.trial import TrialState

from supermax.engine.jobs.job import Job
from supermax.engine.sharing.shared_run import SharedRun
from supermax.engine.storage.lease_tables import (
    QUARANTINED,
    read_owners,
    read_runs,
)
from supermax.engine.storage.leases import (
    LeaseLost,
    TargetReached,
)
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.trial.faults import Evidence, classify
from supermax.errors import Quarantined
from tests.engine.storage.leasing import (
    COMPLETE,
    Opener,
    backend,
    leases,
    study_id,
)


def test_an_offered_trial_is_taken_by_another_run_at_once(open_run: Opener) -> None:
    one, other = open_run("one"), open_run("other", target=1)
    trial = one.create_new_trial(study_id(one))
    leases(one).offer(trial)
    with pytest.raises(LeaseLost):
        one.set_trial_user_attr(trial, "late", 1)
    assert leases(one).renew() == set()
    assert leases(one).expired() == []  # while another run is alive
    assert leases(one).count_elsewhere().trials == 1
    with pytest.raises(TargetReached):  # it still counts
        other.create_new_trial(study_id(other))
    assert read_owners(backend(one), study_id(one), offered=False) == {}
    (lost,) = leases(other).expired()
    assert (lost.trial_id, lost.offered, lost.takeovers) == (trial, True, 0)
    assert leases(other).take_over(lost)
    assert leases(other).take_over(lost)  # the first reply was lost
    assert leases(other).second_hand == {trial}
    assert leases(one).expired() == []
    assert leases(other).register(Path("run"), 1, "0.1")  # it starts again
    assert leases(other).second_hand == {trial}
    assert other.set_trial_state_values(trial, COMPLETE, [1.0])


def test_an_offered_trial_is_taken_back_if_no_other_run_is_left(open_run: Opener) -> None:
    one, other = open_run("one"), open_run("other")
    trial = one.create_new_trial(study_id(one))
    assert leases(one).has_others()
    leases(one).offer(trial)
    with pytest.raises(LeaseLost):
        leases(one).offer(trial)
    leases(other).end(release=False)
    assert not leases(one).has_others()
    (lost,) = leases(one).expired()
    assert leases(one).take_over(lost)
    one.set_trial_user_attr(trial, "mine", 1)
    assert leases(one).second_hand == {trial}


def test_a_trial_is_offered_to_other_machines_first(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "bad")
    one, neighbour = open_run("one"), open_run("neighbour")
    leases(one).offer(one.create_new_trial(study_id(one)))
    assert len(leases(neighbour).expired()) == 1
    monkeypatch.setattr("platform.node", lambda: "good")
    far = open_run("far")
    assert len(leases(far).expired()) == 1
    monkeypatch.setattr("platform.node", lambda: "bad")
    assert leases(neighbour).expired() == []


def failed_in(storage: PatientStorage, trial_id: int) -> Job:
    number = storage.get_trial_number_from_id(trial_id)
    trial = SimpleNamespace(_trial_id=trial_id, number=number)
    fault = classify(Evidence(signum=signal.SIGSEGV))
    return cast(Job, SimpleNamespace(trial=trial, number=number, faults=[fault]))


@pytest.mark.parametrize("elsewhere", [COMPLETE, TrialState.FAIL])
def test_a_run_is_quarantined_by_trials_that_succeed_elsewhere(
    open_run: Opener, elsewhere: TrialState
) -> None:
    bad, good = open_run("bad"), open_run("good")
    values = [1.0] if elsewhere is COMPLETE else None
    now = itertools.count(step=10.0)
    run = SharedRun(bad, leases(bad), clock=lambda: next(now))
    for count in (1, 2, 3):
        run.judge()
        assert run.allowed_workers(4) == 4
        job = failed_in(bad, bad.create_new_trial(study_id(bad)))
        assert run.may_offer(job)
        run.offer(job)
        (lost,) = leases(good).expired()
        assert leases(good).take_over(lost)
        again = SharedRun(good, leases(good))
        assert not again.may_offer(failed_in(good, lost.trial_id)), "a trial is offered once"
        if count < 3:
            good.set_trial_state_values(lost.trial_id, elsewhere, values)
    run.judge()
    assert run.allowed_workers(4) == (1 if elsewhere is COMPLETE else 4)
    good.set_trial_state_values(lost.trial_id, elsewhere, values)
    if elsewhere is TrialState.FAIL:
        run.judge()
        return
    with pytest.raises(Quarantined, match=r"trials 0, 1, 2 failed here \(signal SIGSEGV\) and"):
        run.judge()
    run.succeeded_here()
    run.judge()
    run.note("GPU 1 is out of service")
    run.end(release=True, quarantined="why")
    (row,) = [row for row in read_runs(backend(bad), study_id(bad)) if row.run == "bad"]
    assert (row.state, row.note, row.alive) == (QUARANTINED, "why", False)
