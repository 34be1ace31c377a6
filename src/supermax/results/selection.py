"""Selection on noise: how much of the best value is luck, and when more trials hardly helped.

values, their noise ──selection_of()──▶ Selection ──lines()──▶ sentences of the report
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from supermax._util.attributes import DATA
from supermax._util.text import counted
from supermax.results.noise import noise_of
from supermax.results.records import StudyRecord

FEWEST = 10
"""Values below which the selection is not estimated."""
_LEAST_LEFT = 10  # trials after which something are said to have hardly helped
_REACH = 12.0  # standard errors below the best value, beyond which values are taken as equal
_STEPS = 120  # of the grid of true values
_ROUNDS = 300  # of expectation maximisation


@dataclass(frozen=True)
class Selection:
    """Best value of a search beside the noise of the values."""

    best: int
    """Number of the trial with the best value."""
    values: int
    """Number of trials with a value."""
    noise: float
    """Standard error of a value."""
    luck: float
    """Part of the best value that is expected to be noise; less if errors are alike in trials."""
    last: int
    """Number of the trial after which the best value improved by less than the noise."""
    after: int
    """Number of trials with a value after that one."""
    gained: float
    """Improvement by these."""

    def lines(self, name: str, *, raced: bool = False) -> list[str]:
        """Return sentences for people. `name`: of the metric; `raced`: a race has shown what is
        noise."""
        fixed = self._fixed
        noise = f"standard error of {name}: {fixed(self.noise)}"
        lines = []
        if not raced:
            lines.append(
                f"Of the value of trial {self.best}, the best of {self.values}, up to "
                f"{fixed(self.luck)} is likely to be selection on noise ({noise})."
            )
        if self.after >= _LEAST_LEFT:
            said = f" ({noise})" if raced else ""
            lines.append(
                f"After trial {self.last}, {counted(self.after, 'further trial')} improved the "
                f"best value by {fixed(self.gained)}, less than the standard error{said}: "
                f"they hardly helped."
            )
        else:
            lines.append(
                f"The best value still improved by more than its standard error up to trial "
                f"{self.last}, with {counted(self.after, 'trial')} after it."
            )
        return lines

    def _fixed(self, number: float) -> str:
        """Return a number with two digits of the noise."""
        places = 1 - math.floor(math.log10(self.noise))
        return f"{number:.{max(0, min(6, places))}f}"


def selection_in(record: StudyRecord) -> Selection | None:
    """Return the selection in a search of an agent; None: it has several objectives, too few
    values, or their noise is unknown."""
    ranking = record.ranking()
    if len(record.directions) != 1 or not ranking or not ranking[0].values:
        return None
    best = ranking[0].values[0]
    noise = noise_of(ranking[0].result, record.objectives[0], best, record.race)
    if noise is None:
        return None
    sign = 1.0 if record.directions[0] == "maximize" else -1.0
    values = [(one.number, sign * one.values[0]) for one in ranking if one.values]
    return selection_of(values, noise * math.sqrt(_rows_in_a_group(record)))


def _rows_in_a_group(record: StudyRecord) -> float:
    """Return the mean number of validation rows in a group, at least 1: the rows of a group may
    all be right or wrong together."""
    try:
        split = record.note(DATA)["splits"]["validation"]  # type: ignore[index]
        return max(1.0, float(split["rows"]) / float(split["groups"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 1.0


def selection_of(values: Sequence[tuple[int, float]], noise: float) -> Selection | None:
    """Return the selection among values, each with the number of its trial; higher is better.
    None: there are too few, or they have no noise."""
    known = sorted((number, value) for number, value in values if math.isfinite(value))
    if len(known) < FEWEST or not noise > 0:
        return None
    top = max(value for _, value in known)
    best = next(number for number, value in known if value == top)
    paid = next(i for i, (_, value) in enumerate(known) if value > top - noise)
    reached = max(value for _, value in known[: paid + 1])
    luck = expected_luck([value for _, value in known], noise)
    return Selection(
        best, len(known), noise, luck, known[paid][0], len(known) - paid - 1, top - reached
    )


def expected_luck(values: Sequence[float], noise: float) -> float:
    """Return the expected error of the highest value, at least 0.

    Each value is a true value plus an independent normal error. The distribution of the true
    values is the one under which the values are most likely, whatever its form (nonparametric
    maximum likelihood, by expectation maximisation). Errors that all trials share, since they are
    evaluated on the same rows, move all values alike: they make the result too high.
    """
    top = max(values)
    scaled = np.maximum((np.array(values) - top) / noise, -_REACH)
    found, counts = np.unique(np.round(scaled, 2), return_counts=True)
    grid = np.linspace(found[0], 0.0, _STEPS)
    likely = np.exp(-0.5 * (found[:, None] - grid) ** 2)
    weights = np.full(_STEPS, 1 / _STEPS)
    for _ in range(_ROUNDS):
        shares = likely * weights
        shares /= shares.sum(axis=1, keepdims=True)
        weights = counts @ shares / counts.sum()
    of_best = likely[-1] * weights
    return max(0.0, float(-(of_best @ grid) / of_best.sum())) * noise
