"""Confidence intervals by a bootstrap over groups of the test split and over seeds.

Examples of one group (sentences of one post) are not independent, so whole groups are resampled.
Seeds are resampled too, so that the variance of training counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from supermax.training.data.examples import Example
from supermax.training.data.label_sets import indicators
from supermax.training.eval.entity_metrics import entity_counts, metrics_of_counts
from supermax.training.eval.evaluate import Evaluation
from supermax.training.eval.label_metrics import LabelMeasure
from supermax.training.eval.metrics import Floats, Ints, class_metrics, span_metrics
from supermax.training.eval.number_metrics import number_metrics

ROUNDS = 1000
"""Bootstrap resamples."""
LEVEL = 0.95
"""Confidence level of the intervals."""
FEWEST_GROUPS = 10
"""Groups of examples that a bootstrap needs at least."""
_ROUNDING = 1e-9  # tolerance for a mean at one of its bounds
Measure = Callable[[Ints], Floats]
"""Function from the draws of each group [groups] to values [seeds, metrics]; NaN: not defined."""


@dataclass(frozen=True)
class Estimate:
    """Metric on the test split with its confidence interval.

    The bounds are NaN with fewer than `FEWEST_GROUPS` groups, or if the mean is not between them:
    resamples can miss rare classes, so that the metric averages over fewer classes than the test
    split has.
    """

    mean: float
    """Mean over seeds."""
    low: float
    high: float
    values: tuple[float, ...]
    """Value of each seed."""

    @property
    def interval(self) -> str:
        """Bounds as text for a table; a dash if they are NaN."""
        if math.isnan(self.low) or math.isnan(self.high):
            return "–"
        return f"{self.low:.4f} to {self.high:.4f}"


def bootstrap(
    measure: Measure, groups: int, seeds: int, *, rounds: int = ROUNDS, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the lower and upper bounds [metrics] of the mean over seeds.

    They are quantiles of this mean when groups and seeds are resampled with replacement.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    means = []
    for _ in range(rounds):
        counts = np.bincount(rng.integers(groups, size=groups), minlength=groups)
        drawn = rng.integers(seeds, size=seeds)
        means.append(measure(counts)[drawn].mean(axis=0))
    bounds = np.array([_quantiles(column, groups) for column in np.stack(means).T])
    return bounds[:, 0], bounds[:, 1]


def _quantiles(values: Floats, groups: int) -> Floats:
    """Return the bounds of the finite values; NaN with too few groups to resample."""
    defined = values[np.isfinite(values)]
    if groups < FEWEST_GROUPS or not len(defined):
        return np.full(2, np.nan)
    return np.quantile(defined, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))


def estimates(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], *, rounds: int = ROUNDS
) -> dict[str, Estimate]:
    """Return every metric over seeds, from each seed's evaluation on the same examples."""
    index = {group: i for i, group in enumerate(sorted({e.group for e in examples}))}
    parts = [kind(examples, evaluations, index) for kind in KINDS]
    names = [name for part_names, _ in parts for name in part_names]

    def measure(counts: Ints) -> Floats:
        columns = [part_measure(counts) for part_names, part_measure in parts if part_names]
        return np.concatenate(columns, axis=1)

    observed = measure(np.ones(len(index), dtype=np.int64))
    bounds = bootstrap(measure, len(index), len(evaluations), rounds=rounds)
    return {
        name: _estimate(values, float(low), float(high))
        for name, values, low, high in zip(names, observed.T, *bounds, strict=True)
    }


def _estimate(values: Floats, low: float, high: float) -> Estimate:
    mean = float(values.mean())
    if not low - _ROUNDING <= mean <= high + _ROUNDING:
        low = high = math.nan
    return Estimate(mean, low, high, tuple(values.tolist()))


def _classes(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], index: dict[str, int]
) -> tuple[list[str], Measure]:
    labelled = [
        e for e in examples if e.id in evaluations[0].probabilities and e.label is not None
    ]
    labels = np.array([e.label for e in labelled], dtype=np.int64)
    group = np.array([index[e.group] for e in labelled], dtype=np.int64)
    by_seed = [np.array([each.probabilities[e.id] for e in labelled]) for each in evaluations]
    names = list(class_metrics(labels, by_seed[0])) if labelled else []

    def measure(counts: Ints) -> Floats:
        rows = np.repeat(np.arange(len(labelled)), counts[group])
        if not len(rows):
            return np.full((len(by_seed), len(names)), np.nan)
        return np.array([list(class_metrics(labels[rows], p[rows]).values()) for p in by_seed])

    return names, measure


def _numbers(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], index: dict[str, int]
) -> tuple[list[str], Measure]:
    known = [e for e in examples if e.id in evaluations[0].numbers and e.value is not None]
    truths = np.array([e.value for e in known], dtype=np.float64)
    group = np.array([index[e.group] for e in known], dtype=np.int64)
    by_seed = [np.array([each.numbers[e.id] for e in known]) for each in evaluations]
    names = list(number_metrics(truths, by_seed[0])) if known else []

    def measure(counts: Ints) -> Floats:
        rows = np.repeat(np.arange(len(known)), counts[group])
        if not len(rows):
            return np.full((len(by_seed), len(names)), np.nan)
        return np.array([list(number_metrics(truths[rows], p[rows]).values()) for p in by_seed])

    return names, measure


def _label_sets(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], index: dict[str, int]
) -> tuple[list[str], Measure]:
    known = [e for e in examples if e.id in evaluations[0].label_sets and e.labels is not None]
    if not known:
        return [], lambda _: np.empty((len(evaluations), 0))
    count = len(evaluations[0].probabilities[known[0].id])
    truth = indicators(known, count) > 0
    group = np.array([index[e.group] for e in known], dtype=np.int64)
    by_seed = []
    for each in evaluations:
        predicted = [replace(e, labels=each.label_sets[e.id]) for e in known]
        probabilities = np.array([each.probabilities[e.id] for e in known])
        by_seed.append(LabelMeasure(truth, indicators(predicted, count) > 0, probabilities))

    def measure(counts: Ints) -> Floats:
        return np.array([list(seed(counts[group]).values()) for seed in by_seed])

    return list(by_seed[0]()), measure


def _entities(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], index: dict[str, int]
) -> tuple[list[str], Measure]:
    known = [e for e in examples if e.entities is not None and e.id in evaluations[0].entities]
    group = np.array([index[e.group] for e in known], dtype=np.int64)
    types = sum(name.startswith("f1_") for name in evaluations[0].metrics)
    truths = [e.entities or () for e in known]
    counts_of_seeds = [
        entity_counts(truths, [[f.entity for f in each.entities[e.id]] for e in known], types)
        for each in evaluations
    ]
    names = list(metrics_of_counts(counts_of_seeds[0].sum(axis=0))) if known else []
    # A diverged model looks like one that finds no entities.
    is_valid = [not np.isnan(each.metrics.get("entity_f1", 0.0)) for each in evaluations]

    def measure(counts: Ints) -> Floats:
        sums = [np.tensordot(counts[group], own, axes=1) for own in counts_of_seeds]
        rows = [
            list(metrics_of_counts(own).values()) if valid else [math.nan] * len(names)
            for own, valid in zip(sums, is_valid, strict=True)
        ]
        return np.array(rows)

    return names, measure


def _spans(
    examples: Sequence[Example], evaluations: Sequence[Evaluation], index: dict[str, int]
) -> tuple[list[str], Measure]:
    """Return names and measure of the span metrics.

    These are means over examples, so each example is evaluated once, and resampled as a weight.
    """
    with_spans = [e for e in examples if e.spans is not None and e.id in evaluations[0].spans]
    group = np.array([index[e.group] for e in with_spans], dtype=np.int64)
    by_seed = [
        [span_metrics([each.spans[e.id]], [e.spans or ()], [e.text]) for e in with_spans]
        for each in evaluations
    ]
    names = list(by_seed[0][0]) if with_spans else []
    values = np.array([[list(row.values()) for row in rows] for rows in by_seed])
    # The spans of a diverged model look like those of a model that predicts no answers.
    values[[np.isnan(each.metrics.get("token_f1", 0.0)) for each in evaluations]] = np.nan

    def measure(counts: Ints) -> Floats:
        weight, defined = counts[group], ~np.isnan(values)
        sums = np.einsum("n,snm->sm", weight, np.nan_to_num(values))
        weights = np.einsum("n,snm->sm", weight, defined).astype(np.float64)
        means: Floats = np.divide(sums, weights, out=np.full_like(sums, np.nan), where=weights > 0)
        return means

    return names, measure


KINDS = (_classes, _spans, _numbers, _label_sets, _entities)
"""Functions that return the names of the metrics of one target, and their measure."""
