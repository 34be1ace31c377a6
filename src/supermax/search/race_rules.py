"""Decisions of a race: which configuration trains with which seed next, which are stopped, and
which one wins. Pure.

contestants, scores by (contestant, seed) ──race_state()──▶ RaceState(next, standings, winner)

The scores are values of an objective in trainings with fresh seeds. The value that selected a
configuration in the search is none of them: it is too good by selection. It only orders the
contestants, and the first one within one standard error of the best mean wins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[int, int]
"""Contestant, and seed or fold."""
FEWEST_SEEDS = 3
MOST_SEEDS = 5
_TESTS = 2  # paired and not paired; each at half of the level
_ROUNDING = 1e-12  # relative difference of means that is no difference


@dataclass(frozen=True)
class RaceRules:
    """Rules of a race."""

    seeds: tuple[int, ...]
    """Fresh seeds, or folds, in the order in which every contestant uses them."""
    fewest: int = FEWEST_SEEDS
    """Number of seeds after which a contestant may be stopped."""
    level: float = 0.05
    """Probability that any contestant is stopped that is equal to the leader; and that the
    interval of the winner misses its mean."""

    @property
    def comparisons(self) -> int:
        """Number of times that contestants may be stopped."""
        return max(1, len(self.seeds) - self.fewest)


@dataclass(frozen=True)
class RaceStanding:
    """Contestant and its scores so far."""

    contestant: int
    scores: tuple[float, ...]
    """Scores by seed, in the order of the rules; NaN: the training failed."""
    mean: float | None
    """None: there is no score yet, or a training failed."""
    half_width: float | None
    """Half of the 95 % interval of the mean; None: unknown."""
    stopped: bool


@dataclass(frozen=True)
class RaceState:
    """State of a race, and what it needs next."""

    next: tuple[Pair, ...]
    """Trainings to run now, in this order; (): the race is over."""
    standings: tuple[RaceStanding, ...]
    """Contestants in the order of the search."""
    winner: int | None
    """None: the race is not over, or every contestant failed with some seed."""


def race_state(
    contestants: Sequence[int],
    scores: Mapping[Pair, float],
    rules: RaceRules,
    *,
    maximize: bool = True,
) -> RaceState:
    """Return what a race needs next or, if it needs nothing, who won.

    Contestants are compared after `rules.fewest` seeds and after each further one, always over the
    same seeds: neither the order in which scores arrive nor scores of later seeds change the
    result. A score that is not finite is worse than any other.
    """
    worth = {pair: _worth(score, maximize) for pair, score in scores.items()}
    racing = list(contestants)
    used: dict[int, list[float]] = {}
    missing: tuple[Pair, ...] = ()
    for count in range(rules.fewest, len(rules.seeds) + 1):
        seeds = rules.seeds[:count]
        # One that was stopped keeps the seeds it had then, even if an earlier race had more.
        used |= {c: [worth[c, s] for s in seeds if (c, s) in worth] for c in racing}
        missing = tuple((c, s) for s in seeds for c in racing if (c, s) not in worth)
        if missing or len(racing) < 2 or count == len(rules.seeds):
            break
        worse = _clearly_worse(racing, used, rules)
        racing = [c for c in racing if c not in worse]
        if len(racing) < 2:
            break
    winner = None if missing else _winner(racing, used)
    sign = 1 if maximize else -1
    spread = _spread(list(used.values()))
    return RaceState(
        missing,
        tuple(
            _standing(c, used[c], spread, rules.level / max(1, len(racing)), sign, c not in racing)
            for c in contestants
        ),
        winner,
    )


def _worth(score: float, maximize: bool) -> float:
    """Return the score with higher values better; minus infinity for a training that failed."""
    if not math.isfinite(score):
        return -math.inf
    return score if maximize else -score


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else -math.inf


def _winner(racing: Sequence[int], used: Mapping[int, Sequence[float]]) -> int | None:
    """Return the first contestant within one standard error of the best mean; None: every one
    failed with some seed. `racing`: contestants in the order of the search."""
    means = {c: _mean(used[c]) for c in racing}
    lead = max(means.values(), default=-math.inf)
    if not math.isfinite(lead):
        return None
    errors = [error for error, _ in _errors_of_difference(racing, used)]
    margin = min(errors, default=0.0) + _ROUNDING * abs(lead)
    return next(c for c in racing if lead - means[c] <= margin)


def _clearly_worse(
    racing: Sequence[int], used: Mapping[int, Sequence[float]], rules: RaceRules
) -> set[int]:
    """Return the contestants that are worse than the leader by more than chance allows.

    `used` has the scores of all contestants. The leader is chosen by the same scores, so every
    ordered pair of contestants counts as a test, at every comparison.
    """
    means = {c: _mean(used[c]) for c in racing}
    lead = max(means.values())
    if not math.isfinite(lead):
        return set()
    tail = rules.level / (rules.comparisons * _TESTS * len(used) * (len(used) - 1))
    errors = _errors_of_difference(racing, used)
    margins = [t_quantile(tail, freedom) * error for error, freedom in errors]
    margin = min(margins, default=math.inf) + _ROUNDING * abs(lead)
    return {c for c, mean in means.items() if lead - mean > margin}


def _errors_of_difference(
    racing: Sequence[int], used: Mapping[int, Sequence[float]]
) -> list[tuple[float, int]]:
    """Return the standard error of the difference of two means, not paired and paired by seed,
    each with its degrees of freedom, where there are any."""
    complete = [used[c] for c in racing if math.isfinite(_mean(used[c]))]
    spreads = [_spread(list(used.values())), _paired_spread(complete)]
    count = len(used[racing[0]])
    return [(math.sqrt(2 * variance / count), freedom) for variance, freedom in spreads if freedom]


def t_quantile(tail: float, freedom: int) -> float:
    """Return the value that Student's t exceeds with probability `tail`."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # takes half a second

    return -float(stdtrit(freedom, tail))


def _spread(rows: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance between seeds, pooled over contestants, and its degrees of freedom."""
    complete = [row for row in rows if len(row) > 1 and all(map(math.isfinite, row))]
    freedom = sum(len(row) - 1 for row in complete)
    squares = math.fsum((x - _mean(row)) ** 2 for row in complete for x in row)
    return (squares / freedom if freedom else 0.0), freedom


def _paired_spread(rows: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance that is left without the effects of contestants and of seeds, and its
    degrees of freedom. All rows have the same seeds."""
    freedom = (len(rows) - 1) * (len(rows[0]) - 1) if rows else 0
    if not freedom:
        return 0.0, 0
    of_seeds = [_mean(column) for column in zip(*rows, strict=True)]
    middle = _mean(of_seeds)
    squares = math.fsum(
        (x - _mean(row) - seed + middle) ** 2
        for row in rows
        for x, seed in zip(row, of_seeds, strict=True)
    )
    return squares / freedom, freedom


def _standing(
    contestant: int,
    values: Sequence[float],
    spread: tuple[float, int],
    level: float,
    sign: int,
    stopped: bool,
) -> RaceStanding:
    """`level`: that of the interval. The winner is chosen among those that still race, so each has
    its share of the level of the race."""
    mean, (variance, freedom) = _mean(values), spread
    known = math.isfinite(mean)
    half = None
    if known and freedom:
        half = t_quantile(level / 2, freedom) * math.sqrt(variance / len(values))
    scores = tuple(sign * x if math.isfinite(x) else math.nan for x in values)
    return RaceStanding(contestant, scores, sign * mean if known else None, half, stopped)
