"""Health of a place where trials run, a GPU or a machine. Pure.

    failed there ──▶ Streak ◀── what became of the trial elsewhere
                       └──▶ is_bad(): it succeeded elsewhere, as did others that failed there

A trial that fails at two places says nothing about either: its parameters or its code may be at
fault. A trial that fails here and succeeds elsewhere speaks against this place.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def allowed_workers(streak: Streak, workers: int) -> int:
    """Return the number of trials that may run at once on a machine: one while it is suspect, so
    that it harms few trials if it is bad, and clears itself by a success if it is not."""
    return min(workers, 1) if len(streak.fates) >= PROOFS else workers


def may_start_new(streak: Streak) -> bool:
    return len(streak.fates) < MOST_OPEN
