"""Paused trials as TPE sees them."""

from __future__ import annotations

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers._tpe.sampler import _split_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from supermax.engine.promotion.ladder import Promotion
from supermax.engine.sampling.paused_trials import paused_as_pruned

COMPLETE, PRUNED, RUNNING = TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING


def made(number: int, losses: list[float], state: TrialState) -> FrozenTrial:
    trial = create_trial(state=RUNNING, intermediate_values=dict(enumerate(losses, 1)))
    trial.number, trial.state = number, state
    if state is COMPLETE:
        trial.values = losses[-1:]
    return trial


def states(trials: list[FrozenTrial], **options: int) -> list[TrialState]:
    return [trial.state for trial in paused_as_pruned(trials, Promotion(**options))]


def test_trials_at_a_rung_are_pruned() -> None:
    trials = [made(n, [1.0] * n, RUNNING) for n in range(11)]
    assert [n for n, s in enumerate(states(trials, max_reports=9)) if s is PRUNED] == [1, 3]
    assert [n for n, s in enumerate(states(trials, max_reports=27)) if s is PRUNED] == [1, 3, 9]
    options = {"max_reports": 27, "min_reports": 2}
    assert [n for n, s in enumerate(states(trials, **options)) if s is PRUNED] == [3, 9]
    assert all(trial.state is RUNNING for trial in trials)  # the study's own are not changed


def test_without_max_reports_complete_trials_give_the_rungs() -> None:
    trials = [made(0, [1.0] * 3, RUNNING), made(1, [1.0], PRUNED)]
    assert states(trials) == [RUNNING, PRUNED]
    assert states([*trials, made(2, [1.0] * 9, COMPLETE)]) == [PRUNED, PRUNED, COMPLETE]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_tpe_rates_a_good_paused_trial_before_a_bad_one(direction: str) -> None:
    sign = 1 if direction == "minimize" else -1
    trials = [made(n, [sign * float(n)] * 3, RUNNING) for n in range(8)]
    further = made(8, [sign * 9.0] * 9, RUNNING)
    study = optuna.create_study(direction=direction)
    seen = paused_as_pruned([*trials, further], Promotion(max_reports=27))
    best, others = _split_trials(study, seen, 3)
    assert [t.number for t in best] == [0, 1, 8]  # the one that got further comes first
    assert [t.number for t in others] == [2, 3, 4, 5, 6, 7]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(list(TrialState))), max_size=30))
def test_nothing_else_changes(some: list[tuple[int, TrialState]]) -> None:
    trials = [
        made(n, [1.0] * max(reports, state is COMPLETE), state)
        for n, (reports, state) in enumerate(some)
    ]
    seen = paused_as_pruned(trials, Promotion(max_reports=9))
    for before, after in zip(trials, seen, strict=True):
        at_rung = before.state is RUNNING and len(before.intermediate_values) in (1, 3)
        assert after.state is (PRUNED if at_rung else before.state)
        assert (after is before) is not at_rung
        assert after.intermediate_values == before.intermediate_values
