"""Domains of parameters (ranges and choices, in one or more branches), and constraints."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cached_property, reduce
from typing import Annotated, Any, Literal, Self, TypeGuard

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_serializer,
    field_validator,
    model_validator,
)

from supermax._util.text import nearest
from supermax.space import expression
from supermax.space.expression import Expression, same_value

_LARGEST_INT = 2**53
Choice = StrictBool | StrictInt | StrictFloat | StrictStr | None


class _Plain(BaseModel):
    """Immutable model that forbids unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))


class _Branch(_Plain):
    when: str | None = None
    """Condition under which the parameter has this domain; None: always."""
    type: str

    @cached_property
    def condition(self) -> Expression | None:
        return None if self.when is None else expression.parse(self.when)

    @cached_property
    def distribution(self) -> BaseDistribution:
        raise NotImplementedError

    def contains(self, value: object) -> bool:
        raise NotImplementedError

    def data(self) -> dict[str, object]:
        """Return the branch as plain data in its shortest form."""
        written = {"type", *self.model_dump(exclude_defaults=True)}
        if self.has_default:
            written.add("default")
        return self.model_dump(mode="json", include=written)

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set

    def _check_default(self) -> None:
        default = getattr(self, "default", None)
        if self.has_default and not self.contains(default):
            near = nearest(str(default), map(str, getattr(self, "choices", ())))
            raise ValueError(f"the default {default!r} is not {self}{near}")


class _Range(_Branch):
    low: float
    high: float
    log: bool = False
    step: float | None = None
    default: float | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        low, high = self.low, self.high
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("low and high must be finite")
        if low > high:
            raise ValueError(f"low {low} is above high {high}")
        if self.log and low <= 0:
            raise ValueError(f"a logarithmic range begins above 0, not at {low}")
        if (step := self._coarse_step) is not None:
            if not (math.isfinite(step) and step > 0):
                raise ValueError(f"step must be above 0, but is {step}")
            if self.log:
                raise ValueError("a range has log or step, not both")
            steps = (high - low) / step
            if abs(steps - round(steps)) > 1e-8 * max(1.0, steps):
                last = low + math.floor(steps) * step
                raise ValueError(
                    f"{low} to {high} is not a whole number of steps of {step}: make high {last:g}"
                )
        self._check_default()
        return self

    @property
    def _coarse_step(self) -> float | None:
        """Step of a grid that is coarser than the type; None: there is none."""
        return self.step

    def contains(self, value: object) -> bool:
        return is_number(value) and self.distribution._contains(float(value))

    def __str__(self) -> str:
        step = f" step {self._coarse_step:g}" if self._coarse_step is not None else ""
        return f"{self.low:g} to {self.high:g}" + (" (log)" if self.log else step)


class Float(_Range):
    """Real numbers from low to high, both included."""

    type: Literal["float"] = "float"

    @cached_property
    def distribution(self) -> BaseDistribution:
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


class Int(_Range):
    """Whole numbers from low to high, both included."""

    type: Literal["int"] = "int"
    low: int
    high: int
    step: int = 1
    default: int | None = None

    @field_validator("low", "high")
    @classmethod
    def _exact(cls, end: int) -> int:
        if abs(end) > _LARGEST_INT:
            raise ValueError(f"whole numbers beyond {_LARGEST_INT} cannot be stored exactly")
        return end

    @property
    def _coarse_step(self) -> int | None:
        return None if self.step == 1 else self.step

    @cached_property
    def distribution(self) -> BaseDistribution:
        return IntDistribution(self.low, self.high, log=self.log, step=self.step)

    def contains(self, value: object) -> bool:
        return is_number(value) and float(value).is_integer() and super().contains(value)

    def __str__(self) -> str:
        return f"integers {super().__str__()}"


class Categorical(_Branch):
    """One value of a list."""

    type: Literal["categorical"] = "categorical"
    choices: Annotated[tuple[Choice, ...], Field(min_length=1)]
    default: Choice = None

    @model_validator(mode="after")
    def _sound(self) -> Categorical:
        for position, choice in enumerate(self.choices):
            if isinstance(choice, float) and not math.isfinite(choice):
                raise ValueError(f"{choice} cannot be a choice")
            if any(same_value(choice, other) for other in self.choices[:position]):
                raise ValueError(f"{choice!r} is twice among the choices")
        if any(c is True or c is False for c in self.choices) and any(
            c in (0, 1) and not isinstance(c, bool) for c in self.choices
        ):
            raise ValueError("true and false cannot be told from 1 and 0 in storage")
        self._check_default()
        return self

    def data(self) -> dict[str, object]:
        return {key: value for key, value in super().data().items() if key != "type"}  # implied

    @cached_property
    def distribution(self) -> BaseDistribution:
        return CategoricalDistribution(self.choices)

    def contains(self, value: object) -> bool:
        return any(same_value(value, choice) for choice in self.choices)

    def __str__(self) -> str:
        return "one of " + ", ".join("null" if c is None else str(c) for c in self.choices)


Branch = Float | Int | Categorical
KINDS: dict[str, type[Branch]] = {"float": Float, "int": Int, "categorical": Categorical}


class Parameter(_Plain):
    """Parameter with its branches, of which the first whose condition holds is active. Where none
    does, the parameter is inactive."""

    branches: Annotated[
        tuple[Annotated[Branch, Field(discriminator="type")], ...], Field(min_length=1)
    ]
    was: tuple[str, ...] = ()
    """Names it had in earlier versions of the space."""

    @field_validator("was", mode="before")
    @classmethod
    def _one_or_many(cls, was: object) -> object:
        return (was,) if isinstance(was, str) else was

    def data(self) -> dict[str, object] | list[dict[str, object]]:
        """Return the parameter as plain data in its shortest form."""
        branches = [branch.data() for branch in self.branches]
        was = {"was": self.was[0] if len(self.was) == 1 else list(self.was)} if self.was else {}
        if len(branches) == 1:
            return {**branches[0], **was}
        return {"branches": branches, **was} if was else branches


class Constraint(_Plain):
    """Condition that every configuration must meet: an expression, or a Python function.

    A function is named `package.module:function` in a file. It is called with the nested
    configuration and returns True or False. With `over` it is called with these parameters alone,
    and only when all of them are active.
    """

    name: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    require: str | None = None
    python: str | Callable[[dict[str, Any]], bool] | None = None
    over: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Constraint:
        if (self.require is None) == (self.python is None):
            raise ValueError("it needs either 'require' (an expression) or 'python' (a function)")
        if self.over is not None and self.python is None:
            raise ValueError("'over' goes with 'python'; an expression names its parameters")
        if callable(self.python):
            where = function_name(self.python)
            if "<" in where:
                raise ValueError(
                    f"{where} cannot be found again by its name: define it at the top of a module"
                )
        elif self.python is not None and ":" not in self.python:
            raise ValueError(f"'python' is written package.module:function, not {self.python!r}")
        return self

    @field_serializer("python")
    def _by_name(self, python: str | Callable[..., object] | None) -> str | None:
        return function_name(python) if callable(python) else python

    @cached_property
    def expression(self) -> Expression | None:
        return None if self.require is None else expression.parse(self.require)

    @cached_property
    def function(self) -> Callable[[dict[str, Any]], object]:
        if callable(self.python):
            return self.python
        assert self.python is not None
        # Not pkgutil.resolve_name: the name of a module need not be an identifier (my-rules).
        module, _, path = self.python.partition(":")
        found: object = reduce(getattr, path.split("."), importlib.import_module(module))
        if not callable(found):
            raise TypeError(f"{self.python} is not a function")
        return found

    def data(self) -> dict[str, object]:
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def rule(self) -> str:
        """The expression, or the name of the function."""
        return str(self.require or self.data()["python"])

    def __str__(self) -> str:
        return f"{self.name} ({self.rule}): {self.reason}"


def function_name(function: object) -> str:
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', '<no name>')}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for an int or a float that is not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
