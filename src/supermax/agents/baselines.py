"""Baselines beside which a search's best value is reported."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from supermax.agents.data_summary import used_by
from supermax.training.baseline import baseline, trivial
from supermax.training.data.examples import Corpus, Example

MOST_ROWS = 5_000
"""Rows that TF-IDF learns from at most: a few seconds of one core."""


def trivial_baseline(agent: str, train: Corpus, judged: Corpus) -> dict[str, float]:
    """Return the metrics of the majority class, and of no answer."""
    return _plain(trivial(used_by(agent, train), used_by(agent, judged)))


def tfidf_baseline(agent: str, train: Corpus, judged: Corpus) -> dict[str, Any]:
    """Return the metrics of TF-IDF with logistic regression, and how many rows it learnt from."""
    train, judged = used_by(agent, train), used_by(agent, judged)
    some = replace(train, classes=_sample(train.classes), spans=_sample(train.spans))
    metrics: dict[str, float] = {}
    # No text has a word, say, or there is no memory: then there is no such baseline.
    with contextlib.suppress(ValueError, MemoryError):
        metrics = baseline(some, judged)
    return {
        "metrics": _plain(metrics),
        "rows": len(some.examples),
        "of": len(train.examples),
    }


def _sample(examples: Sequence[Example]) -> tuple[Example, ...]:
    if len(examples) <= MOST_ROWS:
        return tuple(examples)
    chosen = sorted(random.Random(0).sample(range(len(examples)), MOST_ROWS))
    return tuple(examples[i] for i in chosen)


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    """As JSON has it: a metric that is not defined is left out."""
    return {name: round(value, 6) for name, value in metrics.items() if math.isfinite(value)}
