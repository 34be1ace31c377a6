"""Which trials are the best: one order for what is shown, kept on disk and trained again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optuna.study import StudyDirection
from optuna.study._multi_objective import _get_pareto_front_trials_by_trials
from optuna.trial import FrozenTrial, TrialState


def ranked(
    trials: Iterable[FrozenTrial], directions: Sequence[StudyDirection]
) -> list[FrozenTrial]:
    """Complete trials that break no constraint, best first. For several objectives those of the
    front come before all others; within both the first objective decides."""
    candidates = [t for t in trials if t.state is TrialState.COMPLETE and not broken(t)]
    ahead = _front(candidates, directions) if len(directions) > 1 else set()
    sign = -1.0 if directions[0] is StudyDirection.MAXIMIZE else 1.0
    return sorted(candidates, key=lambda t: (t.number not in ahead, sign * t.values[0], t.number))


def front(order: list[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
    """Of ranked trials those no other is better than in everything; for one objective the best."""
    if len(directions) == 1:
        return order[:1]
    ahead = _front(order, directions)
    return [trial for trial in order if trial.number in ahead]


def broken(trial: FrozenTrial) -> dict[str, float]:
    """Constraints that it violates, and by how much."""
    return {name: by for name, by in trial.constraints.items() if by > 0}


def _front(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> set[int]:
    return {trial.number for trial in _get_pareto_front_trials_by_trials(trials, directions)}
