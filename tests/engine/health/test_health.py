"""Decision that a GPU or a machine is bad."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from supermax.engine.health.streaks import (
    MOST_OPEN,
    PROOFS,
    Fate,
    Streak,
    allowed_workers,
    is_bad,
    may_start_new,
)

SUCCEEDED_HERE = "succeeded here"
TRIALS = st.integers(0, 8)
STEPS = st.lists(
    st.tuples(TRIALS, st.sampled_from(["failed here", SUCCEEDED_HERE, *Fate])), max_size=60
)


def replayed(steps: list[tuple[int, str]]) -> Streak:
    streak = Streak()
    for trial, what in steps:
        if what == "failed here":
            streak = streak.add(trial)
        elif what == SUCCEEDED_HERE:
            streak = Streak()
        else:
            streak = streak.resolve(trial, Fate(what))
    return streak


@given(STEPS)
def test_a_place_is_bad_only_after_trials_that_failed_here_and_succeeded_elsewhere(
    steps: list[tuple[int, str]],
) -> None:
    last = max((i for i, (_, what) in enumerate(steps) if what == SUCCEEDED_HERE), default=-1)
    since = steps[last + 1 :]
    failed = {trial for trial, what in since if what == "failed here"}
    elsewhere = {trial for trial, what in since if what == Fate.SUCCEEDED}
    if is_bad(replayed(steps)):
        assert len(failed & elsewhere) >= PROOFS


@given(st.sets(TRIALS, min_size=PROOFS), st.sets(TRIALS, max_size=PROOFS - 1), st.randoms())
def test_trials_that_fail_everywhere_condemn_no_place(
    alike: set[int], here_only: set[int], dice: Random
) -> None:
    fates = dict.fromkeys(alike, Fate.FAILED) | dict.fromkeys(here_only, Fate.SUCCEEDED)
    order = sorted(fates)
    dice.shuffle(order)
    streak = replayed([(trial, "failed here") for trial in order])
    for trial in order:
        streak = streak.resolve(trial, fates[trial])
    assert set(streak.proofs) == here_only
    assert not is_bad(streak)


@given(st.sets(TRIALS, min_size=PROOFS), st.randoms())
def test_the_order_in_which_fates_are_known_does_not_matter(
    trials: set[int], dice: Random
) -> None:
    streak = replayed([(trial, "failed here") for trial in trials])
    assert not is_bad(streak)
    shuffled = sorted(trials)
    dice.shuffle(shuffled)
    for trial in shuffled:
        streak = streak.resolve(trial, Fate.SUCCEEDED)
    assert is_bad(streak)
    assert set(streak.proofs) == trials


@given(STEPS, st.integers(1, 16))
def test_a_suspect_machine_never_stops_altogether(
    steps: list[tuple[int, str]], workers: int
) -> None:
    """It may always run one trial: two machines that wait for each other would wait for ever."""
    assert 1 <= allowed_workers(replayed(steps), workers) <= workers


def test_one_trial_that_fails_again_and_again_counts_once() -> None:
    streak = Streak()
    for _ in range(2 * MOST_OPEN):
        streak = streak.add(7)
    assert allowed_workers(streak, 4) == 4
    assert may_start_new(streak)
    for trial in range(MOST_OPEN):
        streak = streak.add(trial)
    assert allowed_workers(streak, 4) == 1
    assert not may_start_new(streak)
