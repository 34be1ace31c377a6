"""Health of a place where trials run, a GPU or a machine. Pure.

    failed there ──▶ Streak ◀── what became of the trial elsewhere
                       └──▶ is_bad(): it succeeded elsewhere, as did others that failed there
    Streaks: one for each place

A trial that fails at two places says nothing about either: its parameters or its code may be at
fault. A trial that fails here and succeeds elsewhere speaks against this place.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum

PROOFS = 3
"""Different trials in a row that must fail at a place, and succeed elsewhere, to condemn it."""
MOST_OPEN = 10
"""Failures in a row, of which none is known to be the trial's own, at which a machine starts no
new trial until it is known what became of them elsewhere."""


class Fate(StrEnum):
    """End, elsewhere, of a trial that has failed at a place."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class Streak:
    """Trials that failed at a place since the last one succeeded there, by number."""

    fates: tuple[tuple[int, Fate], ...] = ()

    def add(self, trial: int) -> Streak:
        """Return the streak after a trial has failed here."""
        return self if trial in dict(self.fates) else Streak((*self.fates, (trial, Fate.PENDING)))

    def resolve(self, trial: int, fate: Fate) -> Streak:
        """Return the streak with what became of a trial elsewhere. One that failed there as well
        is no evidence."""
        known = ((n, fate if n == trial else before) for n, before in self.fates)
        return Streak(tuple((n, found) for n, found in known if found is not Fate.FAILED))

    @property
    def pending(self) -> tuple[int, ...]:
        return tuple(trial for trial, fate in self.fates if fate is Fate.PENDING)

    @property
    def proofs(self) -> tuple[int, ...]:
        """Numbers of the trials that failed here and succeeded elsewhere."""
        return tuple(trial for trial, fate in self.fates if fate is Fate.SUCCEEDED)


def is_bad(streak: Streak) -> bool:
    return len(streak.proofs) >= PROOFS


@dataclass
class Streaks:
    """Streaks of the places of one run, by name. `before`: places where the trial had failed."""

    by_place: dict[str, Streak] = field(default_factory=dict)

    def fail(self, trial: int, place: str, before: Set[str]) -> None:
        """Note that a trial has failed at a place."""
        self.resolve(trial, before - {place}, Fate.FAILED)
        if not before:
            self.by_place[place] = self.by_place.get(place, Streak()).add(trial)

    def succeed(self, trial: int, place: str | None, before: Set[str]) -> None:
        """Note that a trial has succeeded at a place; None: at one without a name."""
        self.resolve(trial, before - {place}, Fate.SUCCEEDED)
        if place is not None:
            self.by_place.pop(place, None)

    def resolve(self, trial: int, places: Set[str], fate: Fate) -> None:
        """Note what became of a trial that had failed at `places`."""
        for place in places & self.by_place.keys():
            self.by_place[place] = self.by_place[place].resolve(trial, fate)

    def bad(self) -> dict[str, str]:
        """Return the bad places, each with the numbers of the trials that prove it."""
        return {
            place: ", ".join(map(str, streak.proofs))
            for place, streak in self.by_place.items()
            if is_bad(streak)
        }


def is_suspect(streak: Streak) -> bool:
    return len(streak.fates) >= PROOFS


def allowed_workers(streak: Streak, workers: int) -> int:
    """Return the number of trials that may run at once on a machine: one while it is suspect, so
    that it harms few trials if it is bad, and clears itself by a success if it is not."""
    return min(workers, 1) if is_suspect(streak) else workers


def may_start_new(streak: Streak) -> bool:
    return len(streak.fates) < MOST_OPEN
