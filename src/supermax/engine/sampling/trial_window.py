"""Finished trials from which TPE learns: all of them, or an even share of a long study.

TPE compares two densities: of its best trials, at most 25, and of all others. Its cost grows with
the others, while their density changes less and less. Beyond LIMIT trials it gets the same best
ones, and the others thinned out evenly, so that their density stays the same.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from optuna.samplers._tpe.sampler import _split_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

LIMIT = 1000
_BEST = 25  # the most that TPE models as good, with one objective
_SLACK = 1.1  # the window is thinned out when it is that much too large
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly over [0, 1)


class TrialWindow:
    """At most about `limit` of the trials that were added, by number."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept: list[FrozenTrial] = []
        self._added = 0

    def add(self, trials: Iterable[FrozenTrial]) -> None:
        """Add finished trials. TPE does not learn from failed ones."""
        for trial in trials:
            if trial.state is not TrialState.FAIL:
                self._added += 1
                bisect.insort(self._kept, trial, key=_number)

    def trials(self, study: Study) -> list[FrozenTrial]:
        """Return the trials in the window. `study` has the directions by which they are rated."""
        if len(self._kept) > self._limit * _SLACK:
            best, others = _split_trials(study, self._kept, _BEST)
            share = self._limit / self._added
            thinned = [trial for trial in others if _position(trial.number) < share]
            self._kept = sorted(best + thinned, key=_number)
        return list(self._kept)

    def thinned(self, study: Study, trials: list[FrozenTrial], total: int) -> list[FrozenTrial]:
        """Return at most about `limit` of the rated trials among these, and all RUNNING ones.
        `total`: number of trials of the study. It is for views that rate unfinished trials."""
        if len(trials) <= self._limit * _SLACK:
            return trials
        seen = [trial for trial in trials if trial.state is not TrialState.WAITING]
        best, others = _split_trials(study, seen, _BEST)
        share = self._limit / total
        return best + [
            t for t in others if t.state is TrialState.RUNNING or _position(t.number) < share
        ]


def _number(trial: FrozenTrial) -> int:
    return int(trial.number)


def _position(number: int) -> float:
    """Return the place of a trial in the order in which trials are left out, last first.

    It depends on the number alone: what is left out stays out.
    """
    return (number * _GOLDEN) % 1.0
