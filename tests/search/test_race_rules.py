"""Decisions of a race: properties that hold for any scores, and error rates by simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.search.race_rules import Pair, RaceRules, RaceStanding, RaceState, race_state

RULES = RaceRules((2, 3, 4, 5, 6))
NUMBERS = st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True)
SCORES = st.one_of(
    st.floats(-1, 1), st.sampled_from([0.5, 0.5, 0.25, math.nan, math.inf, -math.inf])
)


def raced(
    contestants: list[int], score: Callable[[Pair], float], rules: RaceRules = RULES
) -> tuple[RaceState, dict[Pair, float]]:
    """Run a race to its end, all trainings that it asks for at once."""
    known: dict[Pair, float] = {}
    while (state := race_state(contestants, known, rules)).next:
        known |= {pair: score(pair) for pair in state.next}
    return state, known


@settings(max_examples=40)
@given(NUMBERS, st.data())
def test_a_race_stays_within_its_budget_and_trains_no_pair_twice(
    contestants: list[int], data: st.DataObject
) -> None:
    known: dict[Pair, float] = {}
    while (state := race_state(contestants, known, RULES)).next:
        assert len(set(state.next)) == len(state.next)
        assert not set(state.next) & set(known)
        assert state.winner is None
        known |= {pair: data.draw(SCORES) for pair in state.next}
    assert len(known) <= len(contestants) * len(RULES.seeds)
    assert {seed for _, seed in known} <= set(RULES.seeds)
    for standing in state.standings:
        assert len(standing.scores) >= RULES.fewest
        assert len([pair for pair in known if pair[0] == standing.contestant]) >= RULES.fewest


@settings(max_examples=40)
@given(NUMBERS, st.data())
def test_the_winner_is_the_first_within_one_standard_error_of_the_best_mean(
    contestants: list[int], data: st.DataObject
) -> None:
    state, _ = raced(contestants, lambda _: data.draw(SCORES))
    racing = [standing for standing in state.standings if not standing.stopped]
    assert racing
    if state.winner is None:
        assert all(any(map(math.isnan, standing.scores)) for standing in racing)
        return
    means = {s.contestant: s.mean for s in racing if s.mean is not None}
    lead = max(means.values())
    margin = standard_error(state, racing) + 1e-9
    assert lead - means[state.winner] <= margin
    earlier = [c for c in means if contestants.index(c) < contestants.index(state.winner)]
    assert all(lead - means[c] > margin - 2e-9 for c in earlier)


def standard_error(state: RaceState, racing: list[RaceStanding]) -> float:
    """Return that of the difference of two means: the smaller of paired and not paired."""
    everyone = [np.array(s.scores) for s in state.standings if s.mean is not None and s.scores]
    squares = sum(((x - x.mean()) ** 2).sum() for x in everyone)
    variances = [squares / sum(len(x) - 1 for x in everyone)]
    rows = np.array([s.scores for s in racing if s.mean is not None])
    if len(rows) > 1:
        left = rows - rows.mean(0) - rows.mean(1, keepdims=True) + rows.mean()
        variances.append((left**2).sum() / ((len(rows) - 1) * (rows.shape[1] - 1)))
    return math.sqrt(2 * min(variances) / rows.shape[1])


def test_a_small_difference_leaves_the_best_of_the_search_the_winner() -> None:
    noise = {(c, s): 0.01 * ((7 * c + 3 * s) % 5 - 2) for c in range(3) for s in RULES.seeds}
    for difference, expected in ((0.004, 0), (0.02, 1)):
        gains = {1: difference, 0: 0.0, 2: -difference}
        state, _ = raced([0, 1, 2], lambda pair, g=gains: noise[pair] + g[pair[0]])
        assert state.winner == expected


@settings(max_examples=40)
@given(NUMBERS, st.data(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_change_the_result(
    contestants: list[int], data: st.DataObject, order: random.Random
) -> None:
    scores = {(c, s): data.draw(SCORES) for c in contestants for s in RULES.seeds}
    expected, _ = raced(contestants, lambda pair: scores[pair])
    known: dict[Pair, float] = {}
    while (state := race_state(contestants, known, RULES)).next:
        some = order.sample(state.next, order.randint(1, len(state.next)))
        known |= {pair: scores[pair] for pair in some}
    assert _plain(state) == _plain(expected)
    # More scores, of an earlier race among others, change nothing either.
    assert _plain(race_state(contestants, scores, RULES)) == _plain(expected)


def _plain(state: RaceState) -> str:
    return repr(state)  # NaN is not equal to itself


@settings(max_examples=40)
@given(NUMBERS, st.data())
def test_lower_values_win_where_the_objective_is_minimized(
    contestants: list[int], data: st.DataObject
) -> None:
    scores = {(c, s): data.draw(st.floats(-1, 1)) for c in contestants for s in RULES.seeds}
    up = race_state(contestants, scores, RULES)
    down = race_state(
        contestants, {p: -score for p, score in scores.items()}, RULES, maximize=False
    )
    assert (up.winner, up.next) == (down.winner, down.next)
    for one, other in zip(up.standings, down.standings, strict=True):
        assert other == replace(one, mean=-(one.mean or 0.0), scores=tuple(-x for x in one.scores))


def test_a_clearly_worse_configuration_is_stopped_early() -> None:
    noise = {(c, s): 0.01 * ((7 * c + 3 * s) % 5 - 2) for c in range(3) for s in RULES.seeds}
    state, known = raced([0, 1, 2], lambda pair: noise[pair] + (0.5 if pair[0] == 2 else 0.9))
    assert [standing.stopped for standing in state.standings] == [False, False, True]
    assert sorted(seed for c, seed in known if c == 2) == [2, 3, 4]
    assert sorted(seed for c, seed in known if c == 0) == [2, 3, 4, 5, 6]
    assert state.winner in (0, 1)


def test_a_leader_that_is_clearly_the_best_needs_no_more_seeds() -> None:
    state, known = raced([4, 9], lambda pair: pair[0] + 0.001 * (pair[1] % 2))
    assert (state.winner, len(known)) == (9, 6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_training_without_a_value_counts_as_the_worst(bad: float) -> None:
    state, _ = raced([0, 1], lambda pair: bad if pair == (0, 3) else 0.9 - 0.5 * pair[0])
    assert state.winner == 1
    failed = state.standings[0]
    assert (failed.stopped, failed.mean, failed.half_width) == (True, None, None)
    assert math.isnan(failed.scores[1])


def test_there_is_no_winner_where_every_configuration_fails() -> None:
    state, _ = raced([0, 1, 2], lambda _: math.nan)
    assert state.winner is None
    assert not any(standing.stopped for standing in state.standings)


def test_pairs_by_seed_find_a_difference_that_seeds_hide() -> None:
    """A seed that shifts all configurations alike does not count as noise."""
    shift = {2: -0.3, 3: 0.2, 4: 0.4, 5: -0.1, 6: 0.0}
    state, _ = raced(
        [0, 1, 2], lambda p: shift[p[1]] - 0.05 * p[0] + 0.001 * ((p[0] * 5 + p[1] * 3) % 4)
    )
    assert [standing.stopped for standing in state.standings] == [False, True, True]


def test_equal_scores_are_a_tie_that_the_search_decides() -> None:
    state, known = raced([7, 3, 5], lambda pair: 0.1 * pair[1])
    assert state.winner == 7
    assert len(known) == 15


def simulated(number: int, shared: float, draws: int) -> tuple[float, float]:
    """Return how often equal configurations were declared different, and how often the interval of
    the winner missed their mean. `shared`: part of the variance that seeds have in common."""
    rng = random.Random(number)
    false = missed = 0
    common: dict[int, float] = {}

    def score(pair: Pair) -> float:
        return common[pair[1]] + rng.gauss(0, math.sqrt(1 - shared))

    for _ in range(draws):
        common |= {s: rng.gauss(0, math.sqrt(shared)) for s in RULES.seeds}
        state, _ = raced(list(range(number)), score)
        false += any(standing.stopped for standing in state.standings)
        winner = next(s for s in state.standings if s.contestant == state.winner)
        assert winner.mean is not None
        assert winner.half_width is not None
        missed += abs(winner.mean) > winner.half_width
    return false / draws, missed / draws


@pytest.mark.parametrize(
    ("number", "shared", "draws"),
    [
        (3, 0.0, 1000),
        pytest.param(2, 0.0, 8000, marks=pytest.mark.slow),
        pytest.param(3, 0.5, 8000, marks=pytest.mark.slow),
        pytest.param(5, 0.0, 8000, marks=pytest.mark.slow),
        pytest.param(8, 0.3, 8000, marks=pytest.mark.slow),
    ],
)
def test_equal_configurations_are_rarely_declared_different(
    number: int, shared: float, draws: int
) -> None:
    false, missed = simulated(number, shared, draws)
    error = 3 * math.sqrt(0.05 * 0.95 / draws)
    assert false <= 0.05 + error
    if not shared:  # common effects of seeds are not independent between contestants
        assert missed <= 0.05 + error
