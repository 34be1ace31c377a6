"""What an attempt came to, as a cell writes it down before it says so."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from supermax.engine.shortage import Shortage
from supermax.engine.stacks import is_ours, is_users
from supermax.errors import Infeasible
from supermax.words import masked, masked_addresses

COMPLETE, PRUNED, RAISED, INTERRUPTED = "complete", "pruned", "raised", "interrupted"
_MOST_TRACEBACK = 20_000


@dataclass(frozen=True)
class Raised:
    """An exception, as far as it can be told in words."""

    type: str
    message: str
    traceback: str
    where: str  # file:line of the innermost frame that is the user's own, where there is one
    unsendable: bool = False  # the objective returned something that is no number
    exit_code: int | None = None  # sys.exit
    infeasible_by: float | None = None  # what Infeasible says
    shortage: Shortage | None = None  # of memory


@dataclass(frozen=True)
class Outcome:
    attempt: int
    state: str
    values: tuple[float, ...] | None = None
    raised: Raised | None = None
    seconds: float = 0.0
    peak_rss: int | None = None
    device_allocated: int | None = None
    device_reserved: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Outcome:
        raised = fields.get("raised")
        values = fields.get("values")
        return cls(
            **{
                **fields,
                "raised": _raised(raised) if raised else None,
                "values": tuple(values) if values is not None else None,
            }
        )

    @property
    def diverged(self) -> bool:
        return self.values is not None and not all(math.isfinite(v) for v in self.values)


def _raised(fields: dict[str, Any]) -> Raised:
    short = fields.get("shortage")
    return Raised(**{**fields, "shortage": Shortage(**short) if short else None})


class NoNumber(TypeError):
    """The objective returned something that is neither a number nor a sequence of numbers."""


def as_values(result: Any) -> tuple[float, ...]:
    """The objective's result as Optuna would read it."""
    parts = result if isinstance(result, Sequence) and not isinstance(result, str) else [result]
    values = []
    for part in parts:
        try:
            values.append(float(part))
        except (TypeError, ValueError) as error:
            what = f"a {type(part).__name__}" if part is not None else "None"
            raise NoNumber(
                f"The objective returned {what}, which is not a number. It must return one "
                f"number, or a sequence with one number for each direction of the study."
            ) from error
    return tuple(values)


def describe(error: BaseException, objective: Any = None, short: Shortage | None = None) -> Raised:
    """Put an exception into words, without the engine's own frames on top. `short`: what memory
    there was when it was raised."""
    start = error.__traceback__
    while start is not None and is_ours(start.tb_frame.f_code.co_filename):
        start = start.tb_next
    frames = [f for f in traceback.extract_tb(start) if not is_ours(f.filename)]
    mine = [frame for frame in frames if is_users(frame.filename)] or frames
    where = f"{mine[-1].filename}:{mine[-1].lineno}" if mine else _definition(objective)
    try:
        message, text = str(error), "".join(traceback.format_exception(type(error), error, start))
    except Exception:  # an exception that cannot even be printed
        message, text = "", "".join(traceback.format_tb(error.__traceback__))
    code = error.code if isinstance(error, SystemExit) else None
    return Raised(
        type=_qualified(type(error)),
        message=masked(message)[:2000],
        traceback=masked_addresses(text)[-_MOST_TRACEBACK:],
        where=where,
        unsendable=isinstance(error, NoNumber),
        exit_code=(code if isinstance(code, int) else int(code is not None))
        if isinstance(error, SystemExit)
        else None,
        infeasible_by=_violation(error) if isinstance(error, Infeasible) else None,
        shortage=short,
    )


def _violation(error: Infeasible) -> float:
    """A constraint is violated by what is above 0; whatever else was given counts as 1."""
    try:
        value = float(error.by)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 1.0
    return value if 0 < value < math.inf else 1.0


def _definition(objective: Any) -> str:
    """Where the objective itself stands, for one that could not even be called."""
    code = getattr(objective, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def _qualified(kind: type[BaseException]) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
