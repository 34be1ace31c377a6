"""Outcome of an attempt, as a cell writes it to outcome.json before it reports it."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, SupportsFloat, cast

from supermax._util.text import masked, masked_addresses
from supermax.engine.trial.oom import OomDetails
from supermax.engine.trial.stacks import is_ours, is_users
from supermax.errors import Infeasible

COMPLETE, PRUNED, RAISED, INTERRUPTED = "complete", "pruned", "raised", "interrupted"
_MAX_TRACEBACK = 20_000  # characters


@dataclass(frozen=True)
class Raised:
    """Exception as JSON-serialisable fields."""

    type: str
    message: str
    traceback: str
    where: str
    """file:line of the innermost frame of the user's code; without one, of the innermost frame."""
    unsendable: bool = False
    """True: the objective returned something that is not a number."""
    exit_code: int | None = None
    """Argument of sys.exit; None: another exception."""
    infeasible_by: float | None = None
    """Constraint violation that Infeasible gives; None: another exception."""
    shortage: OomDetails | None = None
    """Memory at an out-of-memory error; None: another exception."""


@dataclass(frozen=True)
class Outcome:
    """End of an attempt: values, or the exception, with its duration and peak memory."""

    attempt: int
    state: str
    """COMPLETE, PRUNED, RAISED or INTERRUPTED."""
    values: tuple[float, ...] | None = None
    raised: Raised | None = None
    seconds: float = 0.0
    peak_rss: int | None = None
    """Peak resident bytes; None: unknown. So are the two below, of the GPU."""
    device_allocated: int | None = None
    device_reserved: int | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Outcome:
        values, raised = fields.get("values"), fields.get("raised")
        if raised:
            oom = raised.get("shortage")
            raised = Raised(**{**raised, "shortage": OomDetails(**oom) if oom else None})
        values = tuple(values) if values is not None else None
        return cls(**{**fields, "values": values, "raised": raised or None})

    @property
    def diverged(self) -> bool:
        """True if a value is NaN or infinite."""
        return self.values is not None and not all(math.isfinite(v) for v in self.values)


class NoNumber(TypeError):
    """Raised for a result that is neither a number nor a sequence of numbers."""


def as_values(result: object) -> tuple[float, ...]:
    """Return the objective's result as a tuple of floats, as Optuna converts it."""
    parts = result if isinstance(result, Sequence) and not isinstance(result, str) else [result]
    values = []
    for part in parts:
        try:
            values.append(float(cast(SupportsFloat, part)))
        except (TypeError, ValueError) as error:
            what = f"a {type(part).__name__}" if part is not None else "None"
            raise NoNumber(
                f"The objective returned {what}, which is not a number. It must return one "
                f"number, or a sequence with one number for each direction of the study."
            ) from error
    return tuple(values)


def describe(
    error: BaseException, objective: object = None, oom: OomDetails | None = None
) -> Raised:
    """Return an exception as data, without the package's own frames on top.

    `objective` gives the place for an exception without frames. `oom`: memory when it was raised.
    """
    start = error.__traceback__
    while start is not None and is_ours(start.tb_frame.f_code.co_filename):
        start = start.tb_next
    frames = [f for f in traceback.extract_tb(start) if not is_ours(f.filename)]
    preferred = [frame for frame in frames if is_users(frame.filename)] or frames
    innermost = preferred[-1] if preferred else None
    where = f"{innermost.filename}:{innermost.lineno}" if innermost else _definition(objective)
    try:
        message, text = str(error), "".join(traceback.format_exception(type(error), error, start))
    except Exception:  # an exception whose __str__ raises
        message, text = "", "".join(traceback.format_tb(error.__traceback__))
    code = error.code if isinstance(error, SystemExit) else None
    return Raised(
        type=_qualified(type(error)),
        message=masked(message)[:2000],
        traceback=masked_addresses(text)[-_MAX_TRACEBACK:],
        where=where,
        unsendable=isinstance(error, NoNumber),
        exit_code=(code if isinstance(code, int) else int(code is not None))
        if isinstance(error, SystemExit)
        else None,
        infeasible_by=_violation(error) if isinstance(error, Infeasible) else None,
        shortage=oom,
    )


def _violation(error: Infeasible) -> float:
    """Return the constraint violation: `error.by` if it is positive and finite, otherwise 1."""
    try:
        value = float(error.by)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 1.0
    return value if 0 < value < math.inf else 1.0


def _definition(objective: object) -> str:
    """Return file:line of the objective's definition, for one that could not be called."""
    code = getattr(objective, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def _qualified(kind: type[BaseException]) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
