"""Memory planning interface: the engine asks a Planner what a trial needs and how to run it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol, TypeGuard

from optuna.trial import Trial

from supermax.errors import Infeasible


@dataclass(frozen=True, init=False)
class Provision:
    """Memory reserved for a trial, and its execution plan."""

    reserve: int
    """Bytes to reserve."""
    plan: dict[str, object]
    """Execution plan for the objective (`trial.plan`); must be JSON."""
    where: str = "device"
    """Memory that is reserved: device or host."""
    why: str = ""
    """Explanation for the user; not part of the plan."""

    def __init__(
        self,
        reserve: int,
        plan: dict[str, object] | None = None,
        where: str = "device",
        why: str = "",
        *,
        how: dict[str, object] | None = None,
    ) -> None:
        """`how` is the former name of `plan`, for one release."""
        if how is not None:
            warnings.warn(_HOW, DeprecationWarning, stacklevel=2)
        found = plan if plan is not None else how if how is not None else {}
        vars(self).update(reserve=reserve, plan=found, where=where, why=why)

    @property
    def how(self) -> dict[str, object]:
        """Former name of `plan`, for one release."""
        warnings.warn(_HOW, DeprecationWarning, stacklevel=2)
        return self.plan


_HOW = "how is now plan; the former name will be removed."


@dataclass(frozen=True)
class Refusal:
    """Answer for a trial that no plan makes fit."""

    message: str
    violation: float = 1.0
    """Constraint violation: the share by which it exceeds the memory."""

    @property
    def error(self) -> Infeasible:
        return Infeasible(self.message, by=self.violation)


@dataclass(frozen=True)
class DeviceUsage:
    """Use of a device by this run."""

    device: str | None
    reserved: int
    """Bytes reserved for running trials."""
    idle: int
    """Number of idle cells that have run a trial: they keep their CUDA context and caches."""
    pids: frozenset[int]
    """Processes of the cells on the device."""
    fresh: bool = False
    """True: the trial needs a new cell, not one of the idle ones."""


class Planner(Protocol):
    """Knows the memory that trials need, and the memory that is free."""

    def provide(self, trial: Trial, failed: Sequence[dict[str, object]]) -> Provision | Refusal:
        """Return the reservation and plan of a trial, or a refusal.

        `failed`: plans with which the trial ran out of memory. Returning one of them again ends
        the trial.
        """

    def room(self, occupied: DeviceUsage) -> int | None:
        """Return the bytes that are free for another trial; None: unknown, do not limit."""


class InvalidAnswer(ValueError):
    """Invalid return value of a planner. The message continues a sentence with its name."""


def checked_provision(answer: object) -> Provision | Refusal:
    """Return the result of Planner.provide with plain JSON values; raise InvalidAnswer."""
    if isinstance(answer, Refusal):
        return answer
    if not isinstance(answer, Provision):
        raise InvalidAnswer(f"returned {answer!r:.80}, which is neither a Provision nor a Refusal")
    if not _is_integer(answer.reserve) or answer.reserve < 0:
        raise InvalidAnswer(f"returned reserve={answer.reserve!r:.80}, not an integer >= 0")
    for name, kind in (("plan", dict), ("where", str), ("why", str)):
        if not isinstance(value := getattr(answer, name), kind):
            raise InvalidAnswer(f"returned {name}={value!r:.80}, which is not a {kind.__name__}")
    try:
        plan = json.loads(json.dumps(answer.plan, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAnswer(f"returned a plan that is not JSON ({error})") from error
    return Provision(int(answer.reserve), plan, answer.where, answer.why)


def checked_room(answer: object) -> int | None:
    """Return the result of Planner.room as an int; raise InvalidAnswer."""
    if answer is not None and not _is_integer(answer):
        raise InvalidAnswer(f"returned {answer!r:.80}, which is neither an integer nor None")
    return None if answer is None else int(answer)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


_FORMER: dict[str, type[Refusal | DeviceUsage]] = {"Refused": Refusal, "Occupied": DeviceUsage}


def __getattr__(name: str) -> type[Refusal | DeviceUsage]:
    """Return the class of a former name, with a DeprecationWarning."""
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    current = _FORMER[name]
    warnings.warn(
        f"{name} is now {current.__name__}; the former name will be removed.",
        DeprecationWarning,
        stacklevel=2,
    )
    return current
