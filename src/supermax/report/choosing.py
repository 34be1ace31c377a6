"""Which trials a figure shows, and within which range: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from supermax.records import StudyRecord, TrialRecord

T = TypeVar("T")
FEWEST_RANKED = 20
"""Complete trials below which importances would be noise: the best tenth is then one trial."""
FEWEST_DRAWN = 10
"""Complete trials below which slices and parallel coordinates show chance alone."""


def value_of(trial: TrialRecord, objective: int = 0) -> float | None:
    """A finite value of a complete trial; None for everything else."""
    if trial.state != "COMPLETE" or not trial.values or len(trial.values) <= objective:
        return None
    value = trial.values[objective]
    return value if math.isfinite(value) else None


def maximizes(record: StudyRecord, objective: int = 0) -> bool:
    return record.directions[objective] == "maximize"


def measured(record: StudyRecord, objective: int = 0) -> list[TrialRecord]:
    """Complete trials with a finite value, whether or not they break a constraint."""
    return [trial for trial in record.trials if value_of(trial, objective) is not None]


def best_first(record: StudyRecord, objective: int = 0) -> list[TrialRecord]:
    sign = -1.0 if maximizes(record, objective) else 1.0
    found = measured(record, objective)
    return sorted(found, key=lambda t: (sign * (value_of(t, objective) or 0.0), t.number))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """Evenly spaced ones, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]


def focus(values: Sequence[float], maximize: bool) -> tuple[float, float] | None:
    """The range to look at first, where a few bad values would flatten all the others.

    Only the bad side is cut: no good trial is ever out of sight.
    """
    if len(values) < 8:
        return None
    ordered = sorted(values, reverse=maximize)  # best first
    best, worst = ordered[0], ordered[-1]
    most = ordered[int(0.9 * (len(ordered) - 1))]
    if abs(worst - best) < 4 * abs(most - best) or most == best:
        return None
    margin = 0.08 * abs(most - best)
    low, high = min(best, most) - margin, max(best, most) + margin
    return low, high
