"""Noise of a trial's value: standard error on the validation rows, and spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import numpy as np

from supermax.results.intervals import FEWEST_ROWS, resampled
from supermax.results.race import RaceRecord

_MEANS = ("exact_match", "token_f1", "char_f1", "span_exact", "span_f1")
"""Metrics that are means over span examples, each from 0 to 1."""


def noise_of(
    result: object, metric: str, value: float, race: RaceRecord | None = None
) -> float | None:
    """Return the standard error of a value that a trial has on the validation rows, with the
    spread over seeds if a race has shown it; None: unknown.

    `result`: what an agent stores with the trial, which any program may change.
    """
    if not isinstance(result, Mapping):
        return None
    try:
        rows = _error_of_classes(result, metric, value)
        rows = _error_of_mean(result, metric, value) if rows is None else rows
    except (TypeError, ValueError, AttributeError):
        return None
    return None if rows is None else math.hypot(rows, spread_over_seeds(race) or 0.0)


def _error_of_classes(result: Mapping[str, object], metric: str, value: float) -> float | None:
    confusion = result.get("confusion")
    drawn = None if confusion is None else resampled(confusion, metric, value)  # type: ignore[arg-type]
    return None if drawn is None else float(np.std(drawn))


def _error_of_mean(result: Mapping[str, object], metric: str, value: float) -> float | None:
    """Return the largest standard error that a mean of numbers from 0 to 1 can have."""
    spans = result.get("spans")
    if metric not in _MEANS or not isinstance(spans, Mapping) or not 0 <= value <= 1:
        return None
    examples = sum(int(count) for count in spans.values())
    return math.sqrt(value * (1 - value) / examples) if examples >= FEWEST_ROWS else None


def spread_over_seeds(race: RaceRecord | None) -> float | None:
    """Return the standard deviation of the value of one configuration over seeds, taken to be the
    same for all; None: no race has shown it. Over folds, values also differ by the rows, whose
    error is counted already."""
    squares, free = 0.0, 0
    for each in race.contestants if race is not None and race.unit == "seed" else ():
        scores = [score for score in each.scores if score is not None]
        if len(scores) > 1:
            squares += statistics.variance(scores) * (len(scores) - 1)
            free += len(scores) - 1
    return math.sqrt(squares / free) if free else None
