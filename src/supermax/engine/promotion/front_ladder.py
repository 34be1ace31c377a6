"""Promotion with several objectives: trials at a rung are ranked by their Pareto fronts.

    reports ──read()──▶ best point so far at each report ──▶ front, distance in it ──▶ Ladder

A trial of an earlier front is better (non-dominated sorting, as in NSGA-II). Within a front, which
may have most of the trials, one whose neighbours are far away is better, so that the trials that
continue cover the whole front.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from optuna.study import Study, StudyDirection
from optuna.study._multi_objective import _fast_non_domination_rank
from optuna.trial import FrozenTrial

from supermax._util.attributes import REPORTED
from supermax.engine.promotion.ladder import Ladder, Promotion

Point = tuple[float, ...]


class FrontLadder(Ladder):
    """Ladder for trials that report one value per objective. Their losses at a rung are ranks,
    which change as further trials reach it."""

    def __init__(self, pruner: Promotion, directions: Sequence[StudyDirection]) -> None:
        self._signs = [-1.0 if d is StudyDirection.MAXIMIZE else 1.0 for d in directions]
        self._points: dict[int, list[Point]] = {}
        """By trial: the best point up to each report, by the first objective."""
        self._unranked: set[int] | None = None
        """Rungs to rank at the end of an update; None: outside of one."""
        super().__init__(pruner, StudyDirection.MINIMIZE)

    def update(self, trials: Iterable[FrozenTrial]) -> None:
        """Add the reports of these trials. Each rung is ranked once, after all of them: a run that
        resumes a long study adds thousands."""
        self._unranked = set()
        super().update(trials)
        unranked, self._unranked = self._unranked, None
        for rung in unranked.intersection(self.rungs):
            self._rank(rung)

    def read(self, trial: FrozenTrial) -> list[float]:
        """Take over the points of a trial. Return a loss for each, to be replaced by its rank."""
        points = [
            tuple(sign * x for sign, x in zip(self._signs, point, strict=True))
            for point in points_of(trial, len(self._signs))
        ]
        self._points[trial.number] = max(
            self._points.get(trial.number, []), best_points(points), key=len
        )
        return [0.0] * len(points)

    def add(self, number: int, values: Sequence[float]) -> None:
        super().add(number, values)
        changed = {rung for rung in self.rungs if rung <= len(values)}
        if self._unranked is not None:
            self._unranked |= changed
            return
        for rung in changed:
            self._rank(rung)

    def _set_rungs(self) -> None:
        super()._set_rungs()
        for rung in self.rungs:
            self._rank(rung)

    def _rank(self, rung: int) -> None:
        """Rank the trials at a rung anew; ties go by number, whatever the order of arrival."""
        numbers = sorted(number for _, number in self._ranked[rung])
        losses = ranks([self._points[number][rung - 1] for number in numbers])
        for number, loss in zip(numbers, losses, strict=True):
            self._losses[number][rung - 1] = loss
        self._ranked[rung] = sorted(zip(losses, numbers, strict=True))
        self._waiting[rung] = sorted(self._place(number) for _, number in self._waiting[rung])


def ladder_of(study: Study) -> Ladder | None:
    """Return the ladder of a study whose pruner is a Promotion; None: its trials do not pause."""
    pruner = study.pruner
    if not isinstance(pruner, Promotion):
        return None
    several = len(study.directions) > 1
    return FrontLadder(pruner, study.directions) if several else Ladder(pruner, study.direction)


def points_of(trial: FrozenTrial, objectives: int) -> list[list[float]]:
    """Return the values of each report of a trial with several objectives, by step."""
    found = {}
    for key, values in trial.system_attrs.items():
        step = key.removeprefix(REPORTED)
        if step != key and step.isdigit() and len(values) == objectives:
            found[int(step)] = [float(value) for value in values]
    return [found[step] for step in sorted(found)]


def best_points(points: Sequence[Point]) -> list[Point]:
    """Return, for each point, the first of those up to it with the lowest first loss."""
    found: list[Point] = []
    for point in points:
        better = not found or _finite(point[0]) < _finite(found[-1][0])
        found.append(point if better else found[-1])
    return found


def ranks(points: Sequence[Point]) -> list[float]:
    """Return a loss for each point: the number of its front, and less than 1 for its place in it,
    the points with the most distant neighbours first."""
    if not points:
        return []
    columns = [[_finite(x) for x in column] for column in zip(*points, strict=True)]
    # Ranks of each objective alone: fronts do not depend on scales, nor shall distances.
    single = np.array([np.unique(column, return_inverse=True)[1] for column in columns], float).T
    fronts = _fast_non_domination_rank(single)
    losses = fronts.astype(float)
    for front in np.unique(fronts):
        members = np.flatnonzero(fronts == front)
        order = np.argsort(-_distances(single[members]), kind="stable")
        losses[members[order]] += np.arange(len(members)) / len(members)
    return [float(loss) for loss in losses]


def _distances(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the crowding distance of each point of a front; of equal points, the first one has
    it, and the others come after all different ones. Otherwise the last of many equal points would
    be at the edge of the front, and no trial with the values of all others would pause."""
    different, first = np.unique(points, axis=0, return_index=True)
    total = np.zeros(len(different))
    for column in different.T:
        order = np.argsort(column, kind="stable")
        ordered = column[order]
        gaps = np.full(len(different), np.inf)
        gaps[1:-1] = ordered[2:] - ordered[:-2]
        total[order] += gaps
    distances = np.full(len(points), -1.0)
    distances[first] = total
    return distances


def _finite(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
