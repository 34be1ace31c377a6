"""Ranking of trials: one order for display, weight retention and refitting. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from optuna.study import StudyDirection
from optuna.study._multi_objective import _get_pareto_front_trials_by_trials
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import RECORD


def ranked(
    trials: Iterable[FrozenTrial], directions: Sequence[StudyDirection]
) -> list[FrozenTrial]:
    """Return the complete trials that violate no constraint, best first. Copies of the results of
    other trials are left out.

    With several objectives, trials of the Pareto front come first; within both groups the first
    objective decides.
    """
    complete = (t for t in trials if t.state is TrialState.COMPLETE and copied_from(t) is None)
    candidates = [trial for trial in complete if not broken(trial)]
    pareto = _pareto_numbers(candidates, directions) if len(directions) > 1 else set()
    return sorted(
        candidates,
        key=lambda t: (t.number not in pareto, place(t.values[0], t.number, directions[0])),
    )


def best_of(
    trials: Iterable[FrozenTrial], directions: Sequence[StudyDirection]
) -> FrozenTrial | None:
    """Return the best trial; None: there is none, or the study has several objectives."""
    order = ranked(trials, directions) if len(directions) == 1 else []
    return order[0] if order else None


def place(value: float, number: int, direction: StudyDirection) -> tuple[float, int]:
    """Return the sort key of a trial for one objective: lower is better, ties by number."""
    return (-value if direction is StudyDirection.MAXIMIZE else value), number


def front(order: list[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
    """Return the Pareto front of ranked trials; with one objective, the best trial."""
    if len(directions) == 1:
        return order[:1]
    pareto = _pareto_numbers(order, directions)
    return [trial for trial in order if trial.number in pareto]


def copied_from(trial: FrozenTrial) -> int | None:
    """Return the number of the trial whose result this one has, since both have the same
    configuration; None: it has its own."""
    record = trial.user_attrs.get(RECORD)
    number = record.get("result_of") if isinstance(record, dict) else None
    return number if isinstance(number, int) else None


def end_of(trial: FrozenTrial) -> float | None:
    """Return the end of a finished trial as Unix time; None: it has none.

    Optuna stores local times, which do not order the trials in the hour that the clock repeats at
    the end of daylight saving, or on machines in different time zones. They are used for trials
    that the engine has not run.
    """
    if trial.datetime_complete is None:
        return None
    record = trial.user_attrs.get(RECORD)
    ended = record.get("ended") if isinstance(record, dict) else None
    known = isinstance(ended, int | float) and math.isfinite(ended)
    return float(ended) if known else trial.datetime_complete.timestamp()  # type: ignore[arg-type]


def broken(trial: FrozenTrial) -> dict[str, float]:
    """Return the constraints that a trial violates, with their violations."""
    return {name: by for name, by in trial.constraints.items() if by > 0}


def _pareto_numbers(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> set[int]:
    return {trial.number for trial in _get_pareto_front_trials_by_trials(trials, directions)}
