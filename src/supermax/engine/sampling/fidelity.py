"""Comparison of trials that were trained for different lengths, for TPE in a study with Promotion.

    trials ──▶ the highest rung that enough of them have reached ──▶ ranks as values

TPE compares a COMPLETE trial by its value, places it before all PRUNED ones, and counts RUNNING
ones as bad. With Promotion this misleads: a trial that ran through is COMPLETE although it is bad,
and a RUNNING one may be the best so far, promoted twice. So all trials that have reached the same
rung are compared by their loss there, whatever their state (the rule of BOHB), and come before
those that have not reached it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.promotion.ladder import Promotion, lowest_so_far, reports_of, rungs_below

ENOUGH = 10
"""Trials that have reached a rung before they are compared there. TPE starts with as many."""


class FidelityView:
    """Trials of a study with Promotion as TPE sees them. Pure but for a cache of losses."""

    def __init__(self, pruner: Promotion, direction: StudyDirection) -> None:
        self._pruner = pruner
        self._sign = -1.0 if direction is StudyDirection.MAXIMIZE else 1.0
        self._losses: dict[int, tuple[int, list[float]]] = {}
        """By trial: number of its reports, and the lowest loss up to each of them."""

    def trials(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials; those that have reached a rung are COMPLETE, with their rank as
        value. Before there is a rung, they stay as they are."""
        levels = self.levels(trials)
        reached = {
            t.number: len(losses) for t in trials if (losses := self._losses_of(t, levels[-1:]))
        }
        common = next(
            (x for x in reversed(levels) if sum(n >= x for n in reached.values()) >= ENOUGH),
            levels[0] if levels else 0,
        )
        keys: dict[int, tuple[int, float]] = {}
        for number, reports in reached.items():
            level = max((x for x in levels if x <= min(reports, common)), default=0)
            if level:
                keys[number] = -level, self._losses[number][1][level - 1]
        ranks = {n: rank for rank, n in enumerate(sorted(keys, key=lambda n: (keys[n], n)))}
        return [
            _complete(t, self._sign * ranks[t.number]) if t.number in ranks else t for t in trials
        ]

    def levels(self, trials: Sequence[FrozenTrial]) -> tuple[int, ...]:
        """Return the rungs and the number of reports of a complete trial, ascending."""
        complete = (len(t.intermediate_values) for t in trials if t.state is TrialState.COMPLETE)
        top = self._pruner.max_reports or max(complete, default=0)
        rungs = rungs_below(top, self._pruner.reduction_factor, self._pruner.min_reports)
        return (*rungs, top) if top else ()

    def _losses_of(self, trial: FrozenTrial, top: Sequence[int]) -> list[float]:
        """Return the lowest loss up to each report; none for a trial that keeps its state. A
        complete trial with fewer reports than others has stopped early: its last loss counts for
        the reports that it did not make."""
        reports = len(trial.intermediate_values)
        if (
            not top
            or trial.state is TrialState.WAITING
            or any(by > 0 for by in trial.constraints.values())
        ):
            return []
        wanted = top[0] if trial.state is TrialState.COMPLETE else reports
        known = self._losses.get(trial.number)
        if known is not None and trial.state is TrialState.RUNNING and known[0] > reports:
            return known[1]  # it starts again, without a checkpoint
        if known is None or known[0] != reports or len(known[1]) < wanted:
            losses = lowest_so_far([self._sign * value for value in reports_of(trial)])
            if not losses and trial.state is TrialState.COMPLETE and trial.value is not None:
                losses = [self._sign * trial.value]
            losses += losses[-1:] * (wanted - len(losses))
            known = self._losses[trial.number] = reports, losses
        return known[1]


def _complete(trial: FrozenTrial, value: float) -> FrozenTrial:
    seen = copy.copy(trial)
    seen.state = TrialState.COMPLETE
    seen.values = [value]
    return seen
