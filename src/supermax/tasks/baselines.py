"""Baselines that the report shows next to the best value of a search."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.baseline import baseline, trivial

MOST_ROWS = 5_000
"""Rows that TF-IDF is fitted on at most, which takes a few seconds of one core."""


class FittedBaseline(TypedDict):
    """Metrics of the fitted baseline, as they are stored."""

    metrics: dict[str, float]
    rows: int
    """Rows that it was fitted on."""
    of: int
    """Rows of the train split."""


def trivial_baseline(agent: str, train: Corpus, validation: Corpus) -> dict[str, float]:
    """Return the metrics of the majority class, of no answer, of the mean, of every label, and of
    the most frequent tag of each word."""
    return _finite(trivial(train.used_by(agent), validation.used_by(agent)))


def fitted_baseline(agent: str, train: Corpus, validation: Corpus) -> FittedBaseline:
    """Fit the baseline of an agent on train, and return its metrics on validation."""
    train, validation = train.used_by(agent), validation.used_by(agent)
    sample = replace(
        train,
        classes=_sample(train.classes),
        spans=_sample(train.spans),
        numbers=_sample(train.numbers),
        label_sets=_sample(train.label_sets),
        entities=_sample(train.entities),
    )
    metrics: dict[str, float] = {}
    # Fitting fails if no text has a word, for example: then there is no such baseline.
    with contextlib.suppress(ValueError, MemoryError):
        metrics = baseline(sample, validation)
    return {
        "metrics": _finite(metrics),
        "rows": len(sample.examples),
        "of": len(train.examples),
    }


def _sample(examples: Sequence[Example]) -> tuple[Example, ...]:
    if len(examples) <= MOST_ROWS:
        return tuple(examples)
    chosen = sorted(random.Random(0).sample(range(len(examples)), MOST_ROWS))
    return tuple(examples[i] for i in chosen)


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """Return the rounded metrics without those that are not defined."""
    return {name: round(value, 6) for name, value in metrics.items() if math.isfinite(value)}
