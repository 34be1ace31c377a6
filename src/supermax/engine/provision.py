"""What a trial may take of a device: asked for by the engine, answered by whoever knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
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
    why: str = ""
    """So and not otherwise, for a person; no part of the plan."""


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
    fresh: bool = False
    """The trial needs a cell that has run nothing: it takes none of the idle ones."""


class Planner(Protocol):
    def provide(self, trial: Trial, failed: Sequence[dict[str, Any]]) -> Provision | Refused:
        """What the trial needs. `failed`: how it was executed when it ran out of memory; one of
        them again ends the trial."""

    def room(self, occupied: Occupied) -> int | None:
        """Bytes for another trial there; None: it is not known, and not what decides."""


class WrongAnswer(ValueError):
    """A planner's answer that cannot be used; the message goes on after its name."""


def as_provided(answer: Any) -> Provision | Refused:
    """A planner's answer to provide, as JSON and plain numbers have it."""
    if isinstance(answer, Refused):
        return answer
    if not isinstance(answer, Provision):
        raise WrongAnswer(f"answered {answer!r:.80}, which is neither a Provision nor a Refused")
    if not _is_whole(answer.reserve) or answer.reserve < 0:
        raise WrongAnswer(f"reserves {answer.reserve!r:.80}, which is no whole number from 0 on")
    if not isinstance(answer.how, dict):
        raise WrongAnswer(f"gives {answer.how!r:.80} as how, which is no dict")
    if not isinstance(answer.where, str):
        raise WrongAnswer(f"gives {answer.where!r:.80} as where, which is no text")
    if not isinstance(answer.why, str):
        raise WrongAnswer(f"gives {answer.why!r:.80} as why, which is no text")
    try:
        how = json.loads(json.dumps(answer.how, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongAnswer(f"gives a how that JSON cannot hold ({error})") from error
    return Provision(int(answer.reserve), how, answer.where, answer.why)


def as_room(answer: Any) -> int | None:
    if answer is not None and not _is_whole(answer):
        raise WrongAnswer(f"answered {answer!r:.80}, which is neither a whole number nor None")
    return None if answer is None else int(answer)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
