"""Estimate of the remaining time: none while it would be a guess, then about right at once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax.engine import events as ev
from supermax.ui.display.remaining import SETTLED, Work, remaining_seconds
from supermax.ui.display.state import RunState
from supermax.ui.display.status import restore, status_json
from tests.ui.display.test_display import Clock, finish, started, state_after

ALONE = Work(0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("own", "others", "left"),
    [
        # Nothing, or too little, is known.
        (Work(0.0, 0.0, 1), ALONE, None),
        (Work(0.2, SETTLED, 1, True), ALONE, None),
        (Work(0.9, SETTLED - 1, 1, True), ALONE, None),
        (Work(3.0, 10.0, 4), ALONE, None),
        (Work(3.0, 60.0, 4), Work(7.0, 60.0, 8), None),
        (Work(0.0, 10.0, 1), Work(0.0, 10.0, None), None),
        # This run alone.
        (Work(1.0, 10.0, 1), ALONE, 100.0),
        (Work(0.25, SETTLED, 1, True), ALONE, 1200.0),
        (Work(4.0, 10.0, 4), ALONE, 25.0),
        # Other workers are as fast as these ones until they have shown their speed.
        (Work(1.0, 10.0, 1), Work(0.0, 5.0, 3), 25.0),
        (Work(1.0, 10.0, 1), Work(2.0, 5.0, 3), 25.0),
        (Work(1.0, 10.0, 1), Work(6.0, 20.0, 3), 25.0),
        (Work(1.0, 10.0, 1), Work(9.0, 10.0, 3), 10.0),
        # A new run learns its speed from the others.
        (Work(0.0, 1.0, 1), Work(9.0, 10.0, 3), 10.0 / 1.2),
        # Other programs: their workers are unknown.
        (Work(1.0, 10.0, 1), Work(3.0, 10.0, None), 25.0),
        (Work(0.0, 10.0, 1), Work(3.0, 10.0, None), None),
        # Runs that have ended do nothing more.
        (Work(1.0, 10.0, 1), Work(9.0, 10.0, 0), 100.0),
    ],
)
def test_the_estimate_of_ten_trials(own: Work, others: Work, left: float | None) -> None:
    found = remaining_seconds(10.0, own, others)
    assert found == (None if left is None else pytest.approx(left))


_works = st.builds(
    Work,
    st.floats(0, 1e6),
    st.floats(0, 1e9),
    st.one_of(st.none(), st.integers(0, 10_000)),
    st.booleans(),
)


@given(own=_works, others=_works, left=st.floats(-10, 1e6))
def test_an_estimate_is_never_negative_and_never_raises(
    own: Work, others: Work, left: float
) -> None:
    found = remaining_seconds(left, own, others)
    assert found is None or found >= 0


def test_the_time_before_the_first_launch_does_not_count() -> None:
    """The objective is loaded meanwhile, once."""
    clock = Clock()
    state = state_after(started(target=11), clock=clock)
    clock.now += 60.0
    for number in range(2):
        state.update(ev.TrialStarted(number, 1, 1, clock.now))
        clock.now += 5.0
        state.update(finish(number, 1.0))
        assert state.eta() == pytest.approx((10 - number) * 5.0)


def test_the_first_steps_of_a_trial_are_no_measure() -> None:
    """They are slow: the process starts, and the first kernels are prepared."""
    clock = Clock()
    state = state_after(started(target=10), ev.TrialStarted(0, 1, 1, 100.0), clock=clock)
    for seconds, share in ((4.0, 0.15), (1.0, 0.3), (1.0, 0.6)):
        clock.now += seconds
        state.update(ev.TrialNoted(0, {"epoch": share, "epochs": 1}))
        assert state.eta() is None
    clock.now += 2.0
    state.update(finish(0, 1.0))
    assert state.eta() == pytest.approx(9 * 8.0)


def test_copies_of_results_are_done_and_tell_no_speed() -> None:
    clock = Clock()
    state = state_after(started(target=20), clock=clock)
    for number in (0, 4):
        state.update(ev.TrialStarted(number, 1, 1, clock.now))
        clock.now += 10.0
        state.update(finish(number, 1.0))
        for copy in range(number + 1, number + 4):
            state.update(replace(finish(copy, 1.0), copied=True))
    assert state.done() == 8
    assert state.states["COMPLETE"] == 8
    assert state.eta() == pytest.approx(12 * 10.0)
    state.wall = clock
    again = restore(json.loads(json.dumps(status_json(state))), clock=clock)
    assert again.eta() == pytest.approx(12 * 10.0)


def test_copies_alone_give_no_estimate() -> None:
    clock = Clock()
    state = state_after(started(target=20), ev.TrialStarted(0, 1, 1, 100.0), clock=clock)
    clock.now += 10.0
    state.update(replace(finish(1, 1.0), copied=True))
    assert state.eta() is None


def changed(finished: int, workers: int) -> ev.StudyChanged:
    return ev.StudyChanged(finished, None, workers)


def test_workers_of_other_runs_count_before_they_have_finished_a_trial() -> None:
    clock = Clock()
    state = state_after(started(target=40), changed(0, 7), clock=clock)
    state.update(ev.TrialStarted(0, 1, 1, clock.now))
    clock.now += 10.0
    state.update(ev.TrialFinished(0, "COMPLETE", (1.0,), {}, 1, 10.0, 1))
    assert state.eta() == pytest.approx(39 * 10.0 / 8)


def test_many_trials_that_others_finish_at_a_time_are_one_measure() -> None:
    """Their number arrives at intervals, and at once after the database was away."""
    clock = Clock()
    state = state_after(started(target=10_000), changed(0, 300), clock=clock)
    total = 0
    for _ in range(10):
        clock.now += 5.0
        total += 500
        state.update(changed(total, 300))
    state.wall = clock
    again = restore(json.loads(json.dumps(status_json(state))), clock=clock)
    for found in (state, again):
        assert found.eta() == pytest.approx(5000 / (100 * 301 / 300))


def test_a_run_that_joins_changes_the_estimate_at_once() -> None:
    clock = Clock()
    state = state_after(started(target=100), changed(0, 1), clock=clock)
    state.update(ev.TrialStarted(0, 1, 1, clock.now))
    total = 0
    for number in range(10):
        clock.now += 10.0
        total += 1
        state.update(ev.TrialFinished(number, "COMPLETE", (1.0,), {}, 1, 10.0, total))
        total += 1
        state.update(changed(total, 1))
    assert state.eta() == pytest.approx(80 * 5.0)
    state.update(changed(total, 3))
    assert state.eta() == pytest.approx(80 * 2.5)
    state.update(changed(total, 0))
    assert state.eta() == pytest.approx(80 * 10.0)


def test_a_state_before_its_start_has_no_estimate() -> None:
    assert RunState(target=3).eta() is None
