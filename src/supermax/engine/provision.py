"""What a trial may take of a device: asked for by the engine, answered by whoever knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from optuna.trial import Trial

from supermax.errors import Infeasible


@dataclass(frozen=True)
class Provision:
    """What is kept free for a trial, and how it is to be executed."""

    reserve: int
    """Bytes of the device."""
    how: dict[str, Any] = field(default_factory=dict)
    """For the objective, as `trial.plan`; JSON."""
    where: str = "device"
    """Whose memory it is: device or host."""


@dataclass(frozen=True)
class Refused:
    """It cannot be executed here, in no way."""

    message: str
    violation: float = 1.0
    """By which share it is too much."""

    @property
    def error(self) -> Infeasible:
        return Infeasible(self.message, by=self.violation)


@dataclass(frozen=True)
class Occupied:
    """What this run has on a device."""

    device: str | None
    reserved: int
    """Bytes kept for running trials."""
    idle: int
    """Cells that have run a trial and wait for the next; what they have loaded stays."""
    pids: frozenset[int]


class Planner(Protocol):
    def provide(self, trial: Trial, failed: Sequence[dict[str, Any]]) -> Provision | Refused:
        """What the trial needs. `failed`: how it was executed when it ran out of memory; what is
        provided must need less than any of them, and one of them again ends the trial."""

    def room(self, occupied: Occupied) -> int | None:
        """Bytes for another trial there; None: it is not known, and not what decides."""
