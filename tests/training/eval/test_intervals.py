"""Intervals of metrics: a bootstrap over groups and seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.training.data.examples import Example
from supermax.training.eval.evaluate import Evaluation
from supermax.training.eval.intervals import FEWEST_GROUPS, bootstrap, estimates
from supermax.training.eval.metrics import class_metrics, span_metrics


@pytest.mark.slow
def test_intervals_cover_what_they_should() -> None:
    """With groups and seeds that differ, about 95 % of the intervals hold the true mean."""
    rng = np.random.default_rng(0)
    groups, seeds, trials, covered = 40, 8, 200, 0
    for trial in range(trials):
        values = 0.5 + rng.normal(0, 0.1, (1, groups)) + rng.normal(0, 0.02, (seeds, 1))
        values = values + rng.normal(0, 0.05, (seeds, groups))

        def measure(counts: Any, values: Any = values) -> Any:
            return (values @ counts / counts.sum())[:, None]

        low, high = bootstrap(measure, groups, seeds, rounds=200, seed=trial)
        covered += int(low[0] <= 0.5 <= high[0])
    assert 0.88 <= covered / trials <= 0.99


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(0, 9))
def test_seeds_that_differ_widen_the_interval(values: list[float], seed: int) -> None:
    """All groups may be alike; the bounds never leave the range of the values."""
    column = np.array(values)[:, None]
    low, high = bootstrap(lambda _: column, 12, len(values), rounds=200, seed=seed)
    assert min(values) - 1e-12 <= low[0] <= high[0] <= max(values) + 1e-12
    if max(values) - min(values) > 1e-6:
        assert high[0] > low[0]


def judged(seed: int, groups: int, per: int, seeds: int) -> tuple[list[Example], list[Any]]:
    """Return random truths and predictions of classes and spans."""
    rng = np.random.default_rng(seed)
    text = "one two three four five"
    examples, evaluations = [], []
    for i in range(groups * per):
        span = ((0, 3),) if rng.random() < 0.5 else ()
        examples.append(Example(f"c{i}", f"g{i % groups}", text, "", int(rng.integers(3))))
        examples.append(Example(f"s{i}", f"g{i % groups}", text, "", None, span))
    for _ in range(seeds):
        p = {e.id: rng.dirichlet([1, 1, 1]).tolist() for e in examples[::2]}
        choices: list[list[tuple[int, int]]] = [[], [(0, 3)], [(0, 7)], [(8, 13)]]
        spans = {e.id: choices[int(rng.integers(4))] for e in examples[1::2]}
        evaluations.append(Evaluation({}, p, spans))
    return examples, evaluations


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 14), st.integers(1, 3), st.integers(1, 3))
def test_estimates_are_the_metrics_themselves(seed: int, groups: int, per: int, n: int) -> None:
    examples, evaluations = judged(seed, groups, per, n)
    found = estimates(examples, evaluations, rounds=15)
    asked, sought = examples[::2], examples[1::2]
    wanted = [
        class_metrics([e.label or 0 for e in asked], [one.probabilities[e.id] for e in asked])
        | span_metrics([one.spans[e.id] for e in sought], [e.spans or () for e in sought],
                       [e.text for e in sought])
        for one in evaluations
    ]  # fmt: skip
    assert found.keys() == wanted[0].keys()
    for name, estimate in found.items():
        assert estimate.values == pytest.approx([w[name] for w in wanted], nan_ok=True), name
        assert math.isnan(estimate.low) == math.isnan(estimate.high)
        if groups < FEWEST_GROUPS:
            assert math.isnan(estimate.low)
            assert estimate.interval == "–"
        elif not math.isnan(estimate.low):
            assert -1 <= estimate.low <= estimate.high <= 1
    again = estimates(examples, evaluations, rounds=15)
    assert repr(again) == repr(found)


def test_more_groups_and_equal_ones_give_narrower_intervals() -> None:
    def width(groups: int, per: int) -> float:
        found = estimates(*judged(1, groups, per, 2), rounds=200)["accuracy"]
        return found.high - found.low

    assert width(80, 1) < 0.6 * width(10, 1)
    examples, evaluations = judged(1, 12, 1, 1)
    doubled = [replace(e, id=f"{e.id}-{k}") for e in examples for k in range(4)]
    one = evaluations[0]
    copied = Evaluation({}, {f"{i}-{k}": v for i, v in one.probabilities.items()
                             for k in range(4)}, {f"{i}-{k}": v for i, v in one.spans.items()
                                                  for k in range(4)})  # fmt: skip
    plain = estimates(examples, [one], rounds=100)["accuracy"]
    # Copies within a group are no new evidence.
    assert estimates(doubled, [copied], rounds=100)["accuracy"] == plain


def test_an_interval_that_does_not_hold_its_own_mean_is_not_given() -> None:
    """Resamples of sixty classes with one or two examples each miss many of them: the mean over
    the others is another metric."""
    examples = [Example(str(i), str(i), "words", label=i % 60) for i in range(90)]
    rng = np.random.default_rng(0)
    given = rng.dirichlet([1.0] * 60, size=90)
    given[np.arange(90), np.arange(90) % 60] += 0.05
    known = {e.id: (p / p.sum()).tolist() for e, p in zip(examples, given, strict=True)}
    found = estimates(examples, [Evaluation({}, known, {})], rounds=60)
    assert found["auprc"].interval == "–"
    assert found["accuracy"].interval != "–"
    for each in found.values():
        assert math.isnan(each.low) or each.low <= each.mean <= each.high
