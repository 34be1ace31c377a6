"""How sure a result is: intervals by a bootstrap over groups of the test split and over seeds.

Examples of one group (sentences of one post) are not independent of each other, so whole groups
are drawn. Seeds are drawn too, so that luck in training counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from supermax.training.data.examples import Example
from supermax.training.evaluate import Evaluation
from supermax.training.metrics import Floats, Ints, class_metrics, span_metrics

ROUNDS = 1000
LEVEL = 0.95
FEWEST_GROUPS = 10
"""Groups of examples from which a bootstrap says anything about others."""
_ROUNDING = 1e-9
Measure = Callable[[Ints], Floats]
"""How often each group was drawn [groups] gives values [seeds, metrics]; NaN: not defined."""


@dataclass(frozen=True)
class Estimate:
    """A metric on the test split. The bounds are NaN where there are fewer than `FEWEST_GROUPS`
    groups, and where they do not hold the mean. With many rare classes, draws miss some, so that
    the metric averages over fewer classes than the test split has."""

    mean: float
    """Over seeds."""
    low: float
    high: float
    values: tuple[float, ...]
    """Of every seed."""

    @property
    def interval(self) -> str:
        """The bounds, for a table."""
        if math.isnan(self.low) or math.isnan(self.high):
            return "–"
        return f"{self.low:.4f} to {self.high:.4f}"


def bootstrap(
    measure: Measure,
    groups: int,
    seeds: int,
    *,
    rounds: int = ROUNDS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """The bounds of the mean over seeds [metrics]: those between which the middle of all means
    lies when groups and seeds are drawn anew, with replacement."""
    rng = np.random.Generator(np.random.PCG64(seed))
    means = []
    for _ in range(rounds):
        counts = np.bincount(rng.integers(groups, size=groups), minlength=groups)
        drawn = rng.integers(seeds, size=seeds)
        means.append(measure(counts)[drawn].mean(axis=0))
    table = np.stack(means)
    tails = (1 - level) / 2, (1 + level) / 2
    bounds = np.stack([_quantiles(column, tails, groups) for column in table.T], axis=1)
    return bounds[0], bounds[1]


def _quantiles(values: Floats, tails: tuple[float, float], groups: int) -> Floats:
    """Draws of a few groups are almost those groups themselves, and say too little about others;
    draws in which a metric is not defined do not count."""
    defined = values[np.isfinite(values)]
    if groups < FEWEST_GROUPS or not len(defined):
        return np.full(2, np.nan)
    return np.asarray(np.quantile(defined, tails), dtype=np.float64)


def estimates(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], *, rounds: int = ROUNDS
) -> dict[str, Estimate]:
    """Every metric over seeds, from what the model of each seed made of the same examples."""
    number = {group: i for i, group in enumerate(sorted({e.group for e in examples}))}
    parts = [_classes(examples, evaluations, number), _spans(examples, evaluations, number)]
    names = [name for own, _ in parts for name in own]

    def measure(counts: Ints) -> Floats:
        return np.concatenate([one(counts) for own, one in parts if own], axis=1)

    whole = measure(np.ones(len(number), dtype=np.int64))
    bounds = bootstrap(measure, len(number), len(evaluations), rounds=rounds)
    return {
        name: _estimate(values, float(low), float(high))
        for name, values, low, high in zip(names, whole.T, *bounds, strict=True)
    }


def _estimate(values: Floats, low: float, high: float) -> Estimate:
    mean = float(values.mean())
    if not low - _ROUNDING <= mean <= high + _ROUNDING:
        low = high = math.nan
    return Estimate(mean, low, high, tuple(values.tolist()))


def _classes(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], number: dict[str, int]
) -> tuple[list[str], Measure]:
    asked = [e for e in examples if e.id in evaluations[0].probabilities and e.label is not None]
    labels = np.array([e.label for e in asked], dtype=np.int64)
    owner = np.array([number[e.group] for e in asked], dtype=np.int64)
    given = [np.array([one.probabilities[e.id] for e in asked]) for one in evaluations]
    names = list(class_metrics(labels, given[0])) if asked else []

    def measure(counts: Ints) -> Floats:
        rows = np.repeat(np.arange(len(asked)), counts[owner])
        if not len(rows):
            return np.full((len(given), len(names)), np.nan)
        return np.array([list(class_metrics(labels[rows], p[rows]).values()) for p in given])

    return names, measure


def _spans(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], number: dict[str, int]
) -> tuple[list[str], Measure]:
    """Metrics of spans are means over the examples that have them, so each is measured once."""
    asked = [e for e in examples if e.spans is not None and e.id in evaluations[0].spans]
    owner = np.array([number[e.group] for e in asked], dtype=np.int64)
    single = [
        [span_metrics([one.spans[e.id]], [e.spans or ()], [e.text]) for e in asked]
        for one in evaluations
    ]
    names = list(single[0][0]) if asked else []
    values = np.array([[list(row.values()) for row in rows] for rows in single])
    # The spans of a model that diverged look like those of one that answers nothing.
    values[[np.isnan(one.metrics.get("token_f1", 0.0)) for one in evaluations]] = np.nan

    def measure(counts: Ints) -> Floats:
        weight, defined = counts[owner], ~np.isnan(values)
        above = np.einsum("n,snm->sm", weight, np.nan_to_num(values))
        below = np.einsum("n,snm->sm", weight, defined).astype(np.float64)
        means: Floats = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
        return means

    return names, measure
