"""Values of trials that were trained for different lengths, for GPSampler with Promotion.

    trials ──▶ the highest rung that enough of them have reached ──▶ ranks ──▶ normal scores

GPSampler learns from COMPLETE trials only, and with Promotion most trials pause or are pruned. So
all trials that have reached the same rung are compared by their loss there, whatever their state
(the rule of BOHB), and come before those that have not reached it. Scores of ranks are values of
one scale, which neither rungs nor trials that diverged distort.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from statistics import NormalDist

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.promotion.ladder import Promotion, lowest_so_far, reports_of
from supermax.engine.sampling.paused_trials import rungs_of

ENOUGH = 10
"""Trials that reach a rung before they are compared there. GPSampler starts with as many."""


def valued_at_rung(
    trials: Sequence[FrozenTrial], pruner: Promotion, direction: StudyDirection
) -> list[FrozenTrial]:
    """Return the trials; those that have reached a rung are COMPLETE, with a value by their rank.
    Others keep their state, and so do all before there is a rung."""
    rungs, top = rungs_of(trials, pruner)
    sign = -1.0 if direction is StudyDirection.MAXIMIZE else 1.0
    losses = {t.number: found for t in trials if (found := _losses_of(t, top, sign))}
    levels = (*rungs, top) if top else ()
    common = next(
        (x for x in reversed(levels) if sum(len(c) >= x for c in losses.values()) >= ENOUGH),
        levels[0] if levels else 0,
    )
    keys = {}
    for number, curve in losses.items():
        level = max((x for x in levels if x <= min(len(curve), common)), default=0)
        if level:
            keys[number] = (-level, curve[level - 1], number)
    order = sorted(keys, key=lambda number: keys[number])
    normal = NormalDist()
    values = {n: sign * normal.inv_cdf((i + 0.5) / len(order)) for i, n in enumerate(order)}
    return [_complete(t, values[t.number]) if t.number in values else t for t in trials]


def _losses_of(trial: FrozenTrial, top: int, sign: float) -> list[float]:
    """Return the lowest loss up to each report; none for a trial that keeps its state. A complete
    trial with fewer reports than others has stopped early: its last loss counts for the reports
    that it did not make."""
    if trial.state in (TrialState.WAITING, TrialState.FAIL) or any(
        by > 0 for by in trial.constraints.values()
    ):
        return []
    losses = lowest_so_far([sign * value for value in reports_of(trial)])
    if trial.state is not TrialState.COMPLETE:
        return losses
    if not losses and trial.value is not None:
        losses = [sign * trial.value if math.isfinite(trial.value) else math.inf]
    return losses + losses[-1:] * (top - len(losses))


def _complete(trial: FrozenTrial, value: float) -> FrozenTrial:
    seen = copy.copy(trial)
    seen.state = TrialState.COMPLETE
    seen.values = [value]
    return seen
