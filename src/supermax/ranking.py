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
    return sorted(
        candidates,
        key=lambda t: (t.number not in ahead, place(t.values[0], t.number, directions[0])),
    )


def best_of(
    trials: Iterable[FrozenTrial], directions: Sequence[StudyDirection]
) -> FrozenTrial | None:
    """The first of them; None where none counts, and of several objectives."""
    order = ranked(trials, directions) if len(directions) == 1 else []
    return order[0] if order else None


def place(value: float, number: int, direction: StudyDirection) -> tuple[float, int]:
    """Where a trial stands by one objective: the lower, the better. Of equals the first."""
    return (-value if direction is StudyDirection.MAXIMIZE else value), number


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
