"""Trials through many versions: renamed parameters, copies, deleted and foreign versions."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from supermax import Space
from tests.space.versions import (
    BASE,
    changed,
    filled,
    opened,
)


def test_renames_of_versions_in_between_apply(storage: Any) -> None:
    """A trial that was not valid in a version is carried past it, with that version's renames."""
    one = Space(name="s", parameters={"a": {"type": "int", "low": 0, "high": 10}})
    two = Space(name="s", parameters={"b": {"type": "int", "low": 0, "high": 5, "was": "a"}})
    wide = {"type": "int", "low": 0, "high": 10, "default": 1}
    three = Space(name="s", parameters={"b": wide})
    four = Space(name="s", parameters={"b": wide, "a": wide})
    study = opened(one, storage).study
    study.enqueue_trial({"a": 7})
    study.optimize(lambda trial: float(one.sample(trial)["a"]), n_trials=1)
    assert opened(two, storage).carried == 0
    result = opened(three, storage)
    assert [t.params for t in result.study.trials] == [{"b": 7}]
    result = opened(four, storage)
    assert [t.params for t in result.study.trials] == [{"b": 7, "a": 1}]  # another a


def test_the_finished_copy_of_a_trial_is_used(storage: Any) -> None:
    space = Space(**BASE)
    study = opened(space, storage).study
    space.sample(running := study.ask())
    two = opened(Space(**{**BASE, "version": 2}), storage)
    assert [t.state for t in two.study.trials] == [TrialState.WAITING]
    study.tell(running, 0.25)  # it was still at work
    three = opened(Space(**{**BASE, "version": 3}), storage)
    assert [t.value for t in three.study.trials] == [0.25]


def test_a_copy_made_by_another_program_is_a_trial_of_its_own(storage: Any) -> None:
    space = Space(**BASE)
    study = opened(space, storage).study
    space.sample(failed := study.ask())
    study.tell(failed, state=TrialState.FAIL)
    two = opened(Space(**{**BASE, "version": 2}), storage).study
    again = two.trials[0]
    two.add_trial(
        create_trial(
            value=0.5,
            params=again.params,
            distributions=again.distributions,
            system_attrs=again.system_attrs,
        )
    )
    three = opened(Space(**{**BASE, "version": 3}), storage).study
    assert sorted(t.state.name for t in three.trials) == ["COMPLETE", "FAIL"]


@pytest.mark.slow
def test_a_version_in_the_middle_may_be_deleted(storage: Any) -> None:
    study = opened(Space(**BASE), storage).study
    filled(study, Space(**BASE), 20)
    few = {"choices": ["bert", "roberta"], "default": "bert"}
    opened(changed(encoder=few), storage)
    opened(Space(**{**changed(encoder=few).data(), "version": 2}), storage)
    optuna.delete_study(study_name="s@2", storage=storage)
    assert opened(Space(**BASE), storage).carried == 20


def test_a_study_of_the_users_own_is_not_taken_for_a_version(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 3)
    own = optuna.create_study(storage=storage, study_name="s@2")
    own.optimize(lambda trial: trial.suggest_float("other", 0, 1), n_trials=2)
    result = opened(Space(**{**BASE, "version": 2}), storage)
    assert result.study.study_name == "s@3"
    assert result.carried == 3
    assert [set(t.params) for t in own.trials] == [{"other"}] * 2


def test_an_incomplete_trial_must_meet_constraints_too(storage: Any) -> None:
    one = Space(name="s", parameters={n: {"type": "int", "low": 0, "high": 9} for n in "ab"})
    study = opened(one, storage).study
    study.enqueue_trial({"a": 9})
    study.optimize(lambda trial: float(trial.suggest_int("a", 0, 9)), n_trials=1)
    rule = {"name": "small", "require": "a < 5", "reason": "-"}
    assert opened(Space(**{**one.data(), "constraints": [rule]}), storage).carried == 0
