"""Outcome of a race: the best configurations of a search, trained again with fresh seeds or on the
folds of a cross-validation.

attribute of the study ──race_of()──▶ RaceRecord, unless it is out of date ──▶ winner, Contestant
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax._util.attributes import RACE
from supermax._util.text import counted
from supermax.engine.ranking import ranked

_MOST_DECIMALS = 6
Unit = Literal["seed", "fold"]
"""Difference between the trainings of a configuration in a race."""


@dataclass(frozen=True)
class Contestant:
    """Configuration of a race."""

    trial: int
    """Number of its trial in the search."""
    value: float
    """Value in the search, by which it was selected."""
    scores: tuple[float | None, ...]
    """Values with fresh seeds or on folds, in the order of RaceRecord.seeds; None: the training
    failed."""
    mean: float | None
    """Mean of the scores; None: a training failed."""
    half_width: float | None
    """Half of the 95 % interval of the mean, over seeds or folds; None: unknown."""
    stopped: bool
    """True: it was clearly worse than the leader."""
    unit: Unit = "seed"

    @property
    def mean_text(self) -> str:
        """Mean with its interval and number of seeds: 0.751 ± 0.012 over 5 seeds."""
        failed = sum(score is None for score in self.scores)
        if self.mean is None:
            return f"{failed} of {counted(len(self.scores), 'training')} failed"
        within = "" if self.half_width is None else f" ± {self._fixed(self.half_width)}"
        return f"{self._fixed(self.mean)}{within} over {counted(len(self.scores), self.unit)}"

    def __str__(self) -> str:
        """Both numbers: 0.783 in the search, 0.751 ± 0.012 over 5 seeds."""
        return f"{self._fixed(self.value)} in the search, {self.mean_text}"

    def _fixed(self, number: float) -> str:
        """Return a number with as many decimals as the interval has meaningful ones."""
        half = self.half_width or 0.0
        places = 1 - math.floor(math.log10(half)) if half > 0 else 4
        return f"{number:.{max(0, min(_MOST_DECIMALS, places))}f}"

    def data(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RaceRecord:
    """Race that has ended."""

    seeds: tuple[int, ...]
    """Fresh seeds, or numbers of folds; one that was stopped used the first of them."""
    contestants: tuple[Contestant, ...]
    """Best configurations, in the order of the search."""
    winner: int | None
    """Number of the winner's trial; None: every configuration failed with some seed."""
    default: tuple[int, float] | None = None
    """Trial of the default configuration, and its value; None: it has none."""

    @property
    def unit(self) -> Unit:
        """Kind of the trainings of each configuration: seeds, or folds."""
        return self.contestants[0].unit if self.contestants else "seed"

    def of(self, trial: int) -> Contestant | None:
        """Return the contestant with the configuration of a trial; None: it did not race."""
        return next((each for each in self.contestants if each.trial == trial), None)

    @property
    def best(self) -> Contestant | None:
        """Winner; None: there is none."""
        return None if self.winner is None else self.of(self.winner)

    def is_of(self, ranking: list[int]) -> bool:
        """Return whether the best trials, by number, are those that raced."""
        return set(ranking[: len(self.contestants)]) == {each.trial for each in self.contestants}

    def selection(self, *, maximize: bool) -> str:
        """Return a sentence on how much of the winner's improvement over the default configuration
        is likely to be selection on noise; "" without a winner."""
        best = self.best
        if best is None or best.mean is None:
            return ""
        sign = 1 if maximize else -1
        excess = sign * (best.value - best.mean)
        fixed = best._fixed
        if excess <= 0:
            return self._no_worse(best, sign)
        if best.unit == "fold":
            lead = f"Trial {best.trial} is worse over folds than in the search by {fixed(excess)}"
            return f"{lead}: selection on noise, and other rows."
        if self.default is None or self.default[0] == best.trial:
            lead = f"Of the value of trial {best.trial} in the search, {fixed(excess)}"
            return f"{lead} is likely to be selection on noise."
        number, value = self.default
        gain = sign * (best.value - value)
        if gain <= 0:
            return (
                f"In the search, trial {best.trial} is no improvement over the default "
                f"configuration (trial {number}), and {fixed(excess)} of its value is likely "
                f"noise.{self._gain_in_race(best, number, sign)}"
            )
        return (
            f"In the search, trial {best.trial} improved on the default configuration (trial "
            f"{number}) by {fixed(gain)}; {fixed(min(excess, gain))} of that is likely to be "
            f"selection on noise."
        )

    def _gain_in_race(self, best: Contestant, default: int, sign: int) -> str:
        """Return a sentence on the winner and the default configuration with the same trainings;
        "" if the default configuration did not race to the end."""
        other = self.of(default)
        if best.mean is None or other is None or other.mean is None or other.stopped:
            return ""
        gain = sign * (best.mean - other.mean)
        if gain <= 0:
            return ""
        return f" Over the same {best.unit}s, its mean is better by {best._fixed(gain)}."

    def _no_worse(self, best: Contestant, sign: int) -> str:
        """Return the sentence on a winner that is no worse than in the search. The best of the
        search may be: then its value was noise, and the race has corrected that."""
        lead = f"Trial {best.trial} is no worse over {best.unit}s than in the search"
        first = self.contestants[0]
        if first.mean is None or sign * (first.value - first.mean) <= 0:
            return f"{lead}: there is no sign of selection on noise."
        fallen = first._fixed(sign * (first.value - first.mean))
        return (
            f"{lead}. Trial {first.trial}, the best in the search, is worse by {fallen}: its "
            f"value there was partly noise."
        )

    def data(self) -> dict[str, Any]:
        """Return it as JSON, for the attribute of the study."""
        return asdict(self)


def race_of(study: Study, ranking: Sequence[FrozenTrial] | None = None) -> RaceRecord | None:
    """Return the race of a study's best configurations; None: there was none, or other trials have
    become the best since. `ranking`: the ranked trials of the study, if they are known."""
    if (race := read_race(study.user_attrs.get(RACE))) is None:
        return None
    if ranking is None:
        ranking = ranked(study.get_trials(deepcopy=False), study.directions)
    return race if race.is_of([trial.number for trial in ranking]) else None


def read_race(stored: object) -> RaceRecord | None:
    """Return the race in an attribute of a study; None if there is none, or it cannot be read: any
    program may set the attribute."""
    try:
        assert isinstance(stored, Mapping)
        default = stored.get("default")
        return RaceRecord(
            tuple(int(seed) for seed in stored["seeds"]),
            tuple(_contestant(each) for each in stored["contestants"]),
            None if stored["winner"] is None else int(stored["winner"]),
            None if default is None else (int(default[0]), float(default[1])),
        )
    except (AssertionError, KeyError, TypeError, ValueError, IndexError):
        return None


def _contestant(stored: Mapping[str, Any]) -> Contestant:
    return Contestant(
        int(stored["trial"]),
        float(stored["value"]),
        tuple(_number(score) for score in stored["scores"]),
        _number(stored["mean"]),
        _number(stored["half_width"]),
        bool(stored["stopped"]),
        "fold" if stored.get("unit") == "fold" else "seed",
    )


def _number(stored: object) -> float | None:
    """Return a finite number; None for any other value."""
    known = isinstance(stored, (int, float)) and math.isfinite(stored)
    return float(stored) if known else None  # type: ignore[arg-type]
