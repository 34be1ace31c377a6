"""Expected gain of further trials: constant, noisy and steadily improving objectives."""

from __future__ import annotations

import math
import random
import statistics
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax.engine import gain
from supermax.engine.gain import Gain, Tried, expected_gain, read_gain

SIGMA = 0.02


def tried(*values: float | None) -> list[Tried]:
    """Return trials that ran one after the other."""
    return [Tried(float(i), value) for i, value in enumerate(values)]


def found(values: list[float], noise: float | None) -> Gain:
    estimate = expected_gain(tried(*values), noise)
    assert estimate is not None
    return estimate


def end_of(values: list[float], noise: float | None) -> int | None:
    """Return the number of trials after which a search ends; None: it does not."""
    return next((n for n in range(50, len(values) + 1) if found(values[:n], noise).over), None)


@pytest.mark.parametrize("noise", [0.01, None])
def test_search_of_a_constant_objective_ends_as_early_as_possible(noise: float | None) -> None:
    assert end_of([0.7] * 60, noise) == 50


@pytest.mark.parametrize("noise", [0.01, None])
def test_search_that_improves_steadily_goes_on(noise: float | None) -> None:
    assert end_of([0.001 * i for i in range(300)], noise) is None


def test_search_of_pure_noise_ends_early() -> None:
    ends = []
    for seed in range(20):
        rng = random.Random(seed)
        ends.append(end_of([rng.gauss(0.7, SIGMA) for _ in range(200)], SIGMA))
    assert statistics.median(end or 200 for end in ends) <= 55
    assert None not in ends


def test_gain_of_values_alike_is_that_of_their_distribution() -> None:
    """The best of exponential values grows by the logarithm of their number."""
    gains, tails = [], []
    for seed in range(200):
        rng = random.Random(seed)
        values = [rng.expovariate(1.0) for _ in range(200)]
        gains.append(found(values, 0.1))
        tails.append(gain._gain_of_tail(tried(*values[100:]), max(values), 100))
    assert {each.trials for each in gains} == {100}
    truth = math.log(1.5)
    assert statistics.fmean(tails) == pytest.approx(truth, abs=0.05)
    # The larger of two estimates is too high rather than too low.
    assert truth < statistics.fmean(each.expected for each in gains) < 3 * truth


def test_lucky_trial_long_ago_does_not_hide_that_the_others_come_nearer() -> None:
    estimates = []
    for seed in range(20):
        rng = random.Random(seed)
        values = [0.0] * 10 + [0.5] + [min(0.49, rng.expovariate(10)) for _ in range(89)]
        estimates.append(found(values, 0.01).expected)
    assert statistics.fmean(estimates) > 0.01


def test_pruned_and_paused_trials_count_without_a_value() -> None:
    values = [0.5 + 0.0001 * i for i in range(30)]
    assert expected_gain(tried(*values), 0.01) is None
    full = tried(*values, *[None] * 30)
    paused = [*full, *[Tried()] * 10]
    estimate = expected_gain(paused, 0.01)
    assert estimate is not None
    assert (estimate.after, estimate.trials) == (70, 35)
    assert expected_gain(tried(*[None] * 90), 0.01) is None


def test_value_of_a_trial_that_ended_late_is_a_late_gain() -> None:
    """It was paused, and continued after the others had ended."""
    early = [Tried(0.0, 0.9), *tried(*[0.5] * 60)[1:]]
    late = [Tried(200.0, 0.9), *early[1:]]
    before, after = expected_gain(early, 0.1), expected_gain(late, 0.1)
    assert before is not None
    assert after is not None
    assert (before.over, after.over) == (True, False)


def test_paused_trials_are_not_taken_for_the_last_ones() -> None:
    rising = tried(*[0.01 * i for i in range(40)])
    estimate = expected_gain([*rising, *[Tried()] * 60], 0.05)
    assert estimate is not None
    assert estimate.expected >= 0.2  # of the last 20 that ended


@given(
    st.lists(st.integers(-1000, 1000), min_size=50, max_size=80),
    st.integers(-100, 100),
    st.sampled_from([0.25, 1.0, 64.0]),
)
def test_unknown_noise_follows_shift_and_scale_of_the_values(
    values: list[int], shift: int, scale: float
) -> None:
    one = found([float(value) for value in values], None)
    other = found([(value + shift) * scale for value in values], None)
    assert one.assumed
    assert other.expected == pytest.approx(one.expected * scale, abs=1e-9)
    assert other.noise == pytest.approx(one.noise * scale, abs=1e-9)


@pytest.mark.parametrize("x", [0.0, 0.1, 1.0, 7.0, 25.0, 40.0])
def test_excess_of_the_best_of_many_is_exact(x: float) -> None:
    step = 1e-3
    points = (step * (i + 0.5) for i in range(round(x / step)))
    area = sum((1 - math.exp(-t)) / t * step for t in points)
    assert gain._entire_exponential_integral(x) == pytest.approx(area, abs=1e-5)


def test_gain_survives_storage_and_damaged_values_are_none() -> None:
    stored = Gain(60, 30, 0.002, 0.012)
    assert read_gain(stored.data()) == stored
    assert str(stored) == "expected gain of the next 30 trials: 0.002, noise 0.012"
    for damaged in (None, 3, {}, {**stored.data(), "noise": "high"}, {"after": 1}):
        assert read_gain(damaged) is None


def test_estimate_is_cheap_with_thousands_of_trials() -> None:
    numbers = count()
    trials = tried(*[float(next(numbers)) % 997 for _ in range(20_000)])
    assert expected_gain(trials, 1.0) is not None


def test_without_a_value_in_the_first_half_nothing_is_estimated() -> None:
    late = [Tried(float(i), None if i < 40 else float(i % 7)) for i in range(60)]
    assert expected_gain(late, 100.0) is None
