"""Selection of the trials that a figure shows, and of its axis range. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from supermax.results.records import StudyRecord, TrialRecord

T = TypeVar("T")
FEWEST_RANKED = 20
"""Complete trials needed for importances: with fewer, the best tenth is a single trial."""
FEWEST_DRAWN = 10
"""Complete trials needed for slices and parallel coordinates: fewer show chance alone."""


def value_of(trial: TrialRecord, objective: int = 0) -> float | None:
    """Return the value of a complete trial if it is finite; otherwise None."""
    if trial.state != "COMPLETE" or not trial.values or len(trial.values) <= objective:
        return None
    value = trial.values[objective]
    return value if math.isfinite(value) else None


def maximizes(record: StudyRecord, objective: int = 0) -> bool:
    return record.directions[objective] == "maximize"


def measured(record: StudyRecord, objective: int = 0) -> list[TrialRecord]:
    """Return complete trials with a finite value, whether or not they violate a constraint."""
    return [trial for trial in record.trials if value_of(trial, objective) is not None]


def best_first(record: StudyRecord, objective: int = 0) -> list[TrialRecord]:
    sign = -1.0 if maximizes(record, objective) else 1.0
    found = measured(record, objective)
    return sorted(found, key=lambda t: (sign * (value_of(t, objective) or 0.0), t.number))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` evenly spaced items, including the first and the last."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]


def focus(values: Sequence[float], maximize: bool) -> tuple[float, float] | None:
    """Return the initial axis range where a few bad values would flatten all the others; None for
    the full range.

    Only the bad side is cut off: good trials are always visible.
    """
    if len(values) < 8:
        return None
    ordered = sorted(values, reverse=maximize)  # best first
    best, worst = ordered[0], ordered[-1]
    percentile = ordered[int(0.9 * (len(ordered) - 1))]
    if abs(worst - best) < 4 * abs(percentile - best) or percentile == best:
        return None
    margin = 0.08 * abs(percentile - best)
    low, high = min(best, percentile) - margin, max(best, percentile) + margin
    return low, high
