"""Paused trials of a study with Promotion, as TPE sees them.

In the study a paused trial is RUNNING: TPE would count it as bad, whatever its reports. It is
shown as PRUNED, which TPE rates by its last report, after all COMPLETE trials and after those that
got further.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from supermax.engine.promotion.ladder import Promotion, rungs_below


def paused_as_pruned(trials: Sequence[FrozenTrial], pruner: Promotion) -> list[FrozenTrial]:
    """Return the trials; RUNNING ones whose last report is at a rung are PRUNED.

    The reports decide, so that the paused trials of other runs of the study count as well. A trial
    that has just passed a rung looks the same until its next report.
    """
    rungs, _ = rungs_of(trials, pruner)
    return [_pruned(trial) if _is_at(trial, rungs) else trial for trial in trials]


def rungs_of(trials: Sequence[FrozenTrial], pruner: Promotion) -> tuple[tuple[int, ...], int]:
    """Return the rungs of a study, ascending, and the reports of a complete trial; 0: unknown."""
    complete = (len(t.intermediate_values) for t in trials if t.state is TrialState.COMPLETE)
    top = pruner.max_reports or max(complete, default=0)
    return rungs_below(top, pruner.reduction_factor, pruner.min_reports), top


def _is_at(trial: FrozenTrial, rungs: Sequence[int]) -> bool:
    return trial.state is TrialState.RUNNING and len(trial.intermediate_values) in rungs


def _pruned(trial: FrozenTrial) -> FrozenTrial:
    seen = copy.copy(trial)
    seen.state = TrialState.PRUNED
    return seen
