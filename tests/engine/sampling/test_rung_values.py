"""Values of trials with different numbers of reports, for GPSampler with Promotion."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from supermax.engine.promotion.ladder import Promotion
from supermax.engine.sampling.rung_values import ENOUGH, valued_at_rung

MINIMIZE, MAXIMIZE = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
COMPLETE, PRUNED, RUNNING = TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING


def made(number: int, losses: list[float], state: TrialState, sign: int = 1) -> FrozenTrial:
    values = [sign * loss for loss in losses]
    trial = create_trial(state=RUNNING, intermediate_values=dict(enumerate(values, 1)))
    trial.number, trial.state = number, state
    if state is COMPLETE:
        trial.values = [sign * min(x for x in [*losses, math.inf] if not math.isnan(x))]
    return trial


def ranking(
    trials: list[FrozenTrial], direction: StudyDirection = MINIMIZE, **options: Any
) -> list[int]:
    """Return the numbers of the trials that get a value, best first."""
    pruner = Promotion(**{"max_reports": 9, **options})
    seen = valued_at_rung(trials, pruner, direction)
    assert [t.number for t in seen] == [t.number for t in trials]
    rated = [t for t in seen if t.state is COMPLETE]
    return [
        t.number
        for t in sorted(rated, key=lambda t: t.value or 0.0, reverse=direction is MAXIMIZE)
    ]


@pytest.mark.parametrize(("direction", "sign"), [(MINIMIZE, 1), (MAXIMIZE, -1)])
@pytest.mark.parametrize("state", [PRUNED, RUNNING])
def test_a_bad_complete_trial_is_not_ranked_before_a_good_paused_one(
    direction: StudyDirection, sign: int, state: TrialState
) -> None:
    bad = made(0, [8.0] * 9, COMPLETE, sign)
    good = [made(n, [float(n)] * 3, state, sign) for n in range(1, 12)]
    assert ranking([bad, *good], direction) == [*range(1, 8), 0, 8, 9, 10, 11]


def test_trials_are_compared_at_the_highest_rung_that_enough_have_reached() -> None:
    reached = [made(n, [9.0, 9.0, float(n)], RUNNING) for n in range(ENOUGH)]
    low = [made(50 + n, [0.0], PRUNED) for n in range(5)]
    high = [made(80, [9.0, 9.0, 4.5] + [0.0] * 6, COMPLETE)]
    assert ranking([*reached, *low, *high]) == [0, 1, 2, 3, 4, 80, 5, 6, 7, 8, 9, *range(50, 55)]
    fewer = [*reached[: ENOUGH - 2], *low, *high]
    assert ranking(fewer)[:5] == [50, 51, 52, 53, 54]


def test_a_trial_that_stopped_early_counts_with_its_last_loss() -> None:
    others = [made(n, [float(n)] * 9, COMPLETE) for n in range(1, ENOUGH)]
    early = made(0, [3.5, 3.7], COMPLETE)
    assert ranking([early, *others]) == [1, 2, 3, 0, *range(4, ENOUGH)]


def test_values_are_normal_scores_of_ranks() -> None:
    trials = [made(n, [10.0**n] * 3, PRUNED) for n in range(11)]
    seen = valued_at_rung(trials, Promotion(max_reports=9), MINIMIZE)
    values = [trial.value or 0.0 for trial in seen]
    assert values[5] == pytest.approx(0.0, abs=1e-12)
    assert values == pytest.approx([-x for x in reversed(values)])
    assert values[10] == pytest.approx(1.691, abs=1e-3)  # the quantile of 21 / 22
    assert all(trial.state is PRUNED for trial in trials)  # the study's own are not changed


def test_failed_and_waiting_trials_get_no_value() -> None:
    trials = [made(n, [float(n)] * 3, state) for n, state in enumerate(TrialState)]
    assert sorted(ranking(trials)) == [n for n, s in enumerate(TrialState) if s.value in (0, 1, 2)]


def test_values_that_are_not_numbers_come_last() -> None:
    trials = [made(n, [float(n)] * 3, PRUNED) for n in range(ENOUGH)]
    assert ranking([made(99, [math.nan] * 3, PRUNED), *trials])[-1] == 99


def test_trials_keep_their_state_before_there_is_a_rung() -> None:
    trials = [made(0, [1.0, 0.5], RUNNING), made(1, [1.0], RUNNING), made(2, [], PRUNED)]
    seen = valued_at_rung(trials, Promotion(), MINIMIZE)
    assert [t.state for t in seen] == [RUNNING, RUNNING, PRUNED]
    seen = valued_at_rung(trials, Promotion(max_reports=27), MINIMIZE)
    assert [t.state for t in seen] == [COMPLETE, COMPLETE, PRUNED]


def test_trials_that_violate_a_constraint_stay_as_they_are() -> None:
    broken = made(0, [0.0] * 9, PRUNED)
    broken.set_constraint("memory", 1.0)
    trials = [broken, *(made(n, [float(n)] * 3, PRUNED) for n in range(1, 12))]
    assert 0 not in ranking(trials)


curves = st.lists(st.one_of(st.integers(0, 5).map(float), st.just(math.nan)), max_size=9)


@given(st.lists(st.tuples(curves, st.sampled_from([PRUNED, RUNNING])), max_size=40))
def test_a_trial_that_is_always_better_is_ranked_before(
    some: list[tuple[list[float], TrialState]],
) -> None:
    trials = [
        made(n, losses, COMPLETE if len(losses) == 9 else state)
        for n, (losses, state) in enumerate(some)
    ]
    order = ranking(trials)
    assert set(order) >= {n for n, (losses, _) in enumerate(some) if losses}
    for one, other in itertools.combinations(order, 2):
        before, after = _lowest(some[one][0]), _lowest(some[other][0])
        worse = all(a > b for a, b in zip(before, after, strict=False))
        assert not (worse and len(before) <= len(after)), (before, after)


def _lowest(losses: list[float]) -> list[float]:
    known = [math.inf if math.isnan(x) else x for x in losses]
    return [min(known[: i + 1]) for i in range(len(known))]
