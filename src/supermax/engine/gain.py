"""Expected gain of further trials: by how much more of them would improve the best value. Pure.

    values of finished trials ──expected_gain()──▶ Gain ──over──▶ the search may end

Two estimates, of which the larger one counts:

- The gain of the trials that ended last, as many as the further ones. If all trials are drawn
  alike, further ones are not expected to gain more; if a sampler makes progress, this gain
  contains it.
- The gain that the best of the recent values let expect: their excess over a threshold is taken
  to be exponential, as it is in the limit for most distributions without a bound. With a bound it
  is less, so this errs on the side of going on. It does not depend on when the best value came.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from supermax._util.text import counted

FEWEST = 50
"""Trials below which nothing is estimated: with fewer, samplers that start slowly were stopped."""
_FEWEST_EXCESSES = 4  # values from which the tail is estimated
TOLERANCE = 0.05
"""Share of the distance from the median to the best value that counts as noise if it is unknown.
"""


@dataclass(frozen=True)
class Tried:
    """Trial that has finished, or has paused for now."""

    ended: float | None = None
    """Unix time; None: it has not finished."""
    value: float | None = None
    """Value, higher is better; None: it has none, such as a pruned trial."""


@dataclass(frozen=True)
class Gain:
    """Expected gain of further trials, beside the noise of the objective."""

    after: int
    """Number of trials from which it is estimated."""
    trials: int
    """Number of further trials."""
    expected: float
    """Improvement of the best value by so many trials, at least 0."""
    noise: float
    """Error of a value: a smaller improvement cannot be told from it."""
    assumed: bool = False
    """True: the noise is unknown, and a share of the differences between trials stands for it."""

    @property
    def over(self) -> bool:
        """Return whether further trials are not expected to improve the best value noticeably."""
        return self.expected <= self.noise

    @property
    def short(self) -> str:
        """Numbers alone: 0.002 expected of the next 25 trials, noise 0.012."""
        further = counted(self.trials, "trial")
        return f"{self.expected:.2g} expected of the next {further}, {self._beside}"

    @property
    def _beside(self) -> str:
        return f"{'tolerance' if self.assumed else 'noise'} {self.noise:.2g}"

    def __str__(self) -> str:
        further = counted(self.trials, "trial")
        return f"expected gain of the next {further}: {self.expected:.2g}, {self._beside}"

    def data(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def read_gain(stored: object) -> Gain | None:
    """Return the gain in an attribute or a file; None if there is none, or it cannot be read."""
    try:
        assert isinstance(stored, dict)
        return Gain(
            int(stored["after"]),
            int(stored["trials"]),
            float(stored["expected"]),
            float(stored["noise"]),
            bool(stored["assumed"]),
        )
    except (AssertionError, KeyError, TypeError, ValueError):
        return None


def expected_gain(trials: Sequence[Tried], noise: float | None) -> Gain | None:
    """Return the expected gain of further trials, half as many as there were; None: there are too
    few, or none of the first half had a value. `trials` by number; `noise` None: unknown."""
    values = [each.value for each in trials if each.value is not None]
    if len(trials) < FEWEST or len(values) <= _FEWEST_EXCESSES:
        return None
    further, best = len(trials) // 2, max(values)
    gained = best - _best_earlier(trials, further / len(trials))
    if math.isinf(gained):
        return None
    recent = trials[len(trials) // 2 :]
    if sum(each.value is not None for each in recent) <= _FEWEST_EXCESSES:
        recent = trials
    expected = max(gained, _gain_of_tail(recent, best, further))
    if noise is not None:
        return Gain(len(trials), further, expected, noise)
    spread = TOLERANCE * (best - statistics.median(values))
    return Gain(len(trials), further, expected, spread, assumed=True)


def _best_earlier(trials: Sequence[Tried], share: float) -> float:
    """Return the best value among the trials that have ended, except for the share of them that
    ended last. Paused trials have not ended and are left out."""
    ended = [each for each in trials if each.ended is not None]
    by_end = sorted(ended, key=lambda each: each.ended or 0.0)
    earlier = by_end[: len(by_end) - math.ceil(share * len(by_end))]
    return max((each.value for each in earlier if each.value is not None), default=-math.inf)


def _gain_of_tail(recent: Sequence[Tried], best: float, further: int) -> float:
    """Return the expected excess over `best` of the best of `further` trials like these."""
    values = sorted((each.value for each in recent if each.value is not None), reverse=True)
    count = max(_FEWEST_EXCESSES, len(values) // 10)
    scale = tail_scale(values, count)
    if scale == 0.0:
        return 0.0
    exceed = count / len(recent) * math.exp(-(best - values[count]) / scale)
    return scale * _entire_exponential_integral(further * exceed)


def tail_scale(values: Sequence[float], count: int) -> float:
    """Return the mean excess of the `count` highest values over the next one. `values`: sorted,
    highest first."""
    return statistics.fmean(values[:count]) - values[count]


def _entire_exponential_integral(x: float) -> float:
    """Return Ein(x), the integral of (1 - exp(-t)) / t from 0 to x: with exponential excesses of
    scale 1, the expected excess of the best of many trials of which x exceed the bound."""
    if x > 30:
        return math.log(x) + 0.5772156649015329
    total, term, k = 0.0, -1.0, 0
    while k < 150:
        k += 1
        term *= -x / k
        total += term / k
    return total
