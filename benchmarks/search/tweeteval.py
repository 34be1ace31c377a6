"""TweetEval: MiniLM, whole and with half of its layers, fine-tuned on six tasks with eleven
parameters, nine epochs (recorded by record.py). The loss is 1 - macro F1 of the validation split.

A configuration gets its curve from a Gaussian process over the recorded ones, which predicts
left-out configurations better than the nearest one (curves.py). It gives the mean over seeds: the
curve has no noise.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from surrogates import GaussianProcess
from tables import Params, Table
from trainings import (
    DEFAULTS,
    ENCODERS,
    EPOCHS,
    SPACE,
    TASKS,
    Item,
    Line,
    configurations,
    read_lines,
)


class Recorded(NamedTuple):
    """Trainings of one task with the schedule of all epochs, one per row."""

    configurations: np.ndarray
    """Number of the configuration of each row."""
    points: np.ndarray
    """Its place in the unit cube."""
    losses: np.ndarray
    """After each epoch."""


def names() -> list[str]:
    """Return the names of the tasks."""
    return [f"{task}-{encoder}" for task in TASKS for encoder in ENCODERS]


def recorded(lines: dict[Item, Line], name: str) -> Recorded:
    """Return the trainings of a task, those with further seeds included."""
    task, encoder = name.rsplit("-", 1)
    kept = [
        item
        for item in sorted(lines)
        if (item.task, item.encoder, item.epochs) == (task, encoder, EPOCHS)
    ]
    places = points_of(configurations())
    numbers = np.array([item.configuration for item in kept])
    losses = np.array([lines[item].validation for item in kept])
    return Recorded(numbers, places[numbers], 1 - np.nan_to_num(losses))


def points_of(found: Iterable[Params]) -> np.ndarray:
    """Return the places of configurations in the unit cube."""
    return np.array([[_place(SPACE[name], each[name]) for name in SPACE] for each in found])


def _place(domain: BaseDistribution, value: object) -> float:
    if isinstance(domain, CategoricalDistribution):
        return domain.choices.index(value) / (len(domain.choices) - 1)
    assert isinstance(domain, FloatDistribution)
    assert isinstance(value, float | int)
    low, high, at = domain.low, domain.high, value
    if domain.log:
        low, high, at = np.log(low), np.log(high), np.log(at)
    return float((at - low) / (high - low))


@functools.cache
def _lines(file: Path) -> dict[Item, Line]:
    return read_lines(file)


def read(file: Path, name: str) -> Table:
    """Return the table of a task.

    The best and the median value are those of the surrogate for the recorded configurations. It
    knows two more seeds of the best 20: the lowest value of a single seed would be luck, and the
    lowest mean of three still is, so that no search on the surrogate could reach it.
    """
    data = recorded(_lines(file), name)
    surrogate = GaussianProcess(data.points, data.losses)

    def curve(params: Params) -> np.ndarray:
        found: np.ndarray = surrogate.predict(points_of([params]))[0]
        return found

    known = configurations()
    lowest = surrogate.predict(points_of(known)).min(1)
    best, median = float(lowest.min()), float(np.median(lowest))
    title = f"tweeteval-{name}"
    return Table(title, dict(SPACE), EPOCHS, best, median, curve, DEFAULTS, recorded=known)
