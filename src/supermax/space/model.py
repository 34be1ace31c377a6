"""Search space: parameters with conditions, and constraints among them.

Space ──walk(choose)──▶ flat configuration ──nest()──▶ nested configuration
flat configuration ──mistakes()──▶ messages on values that are not in the space
"""

from __future__ import annotations

import graphlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import BaseTrial
from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from supermax._util.attributes import ParamValue, domain_name
from supermax._util.text import listed, mistakes, nearest
from supermax.errors import UserError
from supermax.space.checking import examined, parameters_needed_by
from supermax.space.domains import Branch, Categorical, Constraint, Float, Parameter

Flat = dict[str, ParamValue]
"""Configuration by plain names, {"optim.lr": 1e-3}; inactive parameters are absent."""


class Space(BaseModel):
    """Parameters, the conditions they depend on, and the constraints that hold among them."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    name: str = "space"
    version: int = 1
    description: str = ""
    parameters: dict[str, Parameter]
    constraints: tuple[Constraint, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _sound(cls, data: object) -> dict[str, object]:
        parameters, found = examined(data)
        if found:
            raise UserError(listed(f"The space has {mistakes(len(found))}:", map(str, found)))
        return {**cast(Mapping[str, object], data), "parameters": parameters}

    @model_serializer
    def data(self) -> dict[str, Any]:
        """Return the space as plain data in its shortest form; Space(**data) is the same space."""
        text = {"description": self.description} if self.description else {}
        constraints = {"constraints": [c.data() for c in self.constraints]}
        return {
            "name": self.name,
            "version": self.version,
            **text,
            "parameters": {name: p.data() for name, p in self.parameters.items()},
            **(constraints if self.constraints else {}),
        }

    def to_json(self) -> str:
        return json.dumps(self.data(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Space:
        return cls(**json.loads(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.data() == other.data()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Parameters, each after those that its conditions depend on."""
        needs = {n: parameters_needed_by(p.branches) for n, p in self.parameters.items()}
        return tuple(graphlib.TopologicalSorter(needs).static_order())

    @cached_property
    def stored_names(self) -> dict[tuple[str, int], str]:
        """Name in storage of each branch, by parameter and position: the plain name for the first
        branch and for every other with the same domain."""
        names: dict[tuple[str, int], str] = {}
        for name, parameter in self.parameters.items():
            first = parameter.branches[0].distribution
            for position, branch in enumerate(parameter.branches):
                plain = _same_domain(branch.distribution, first)
                names[name, position] = name if plain else domain_name(name, branch.distribution)
        return names

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna distribution of each branch, by its name in storage."""
        return {
            self.stored_names[name, position]: branch.distribution
            for name, parameter in self.parameters.items()
            for position, branch in enumerate(parameter.branches)
        }

    def active(self, name: str, values: Mapping[str, object]) -> int | None:
        """Return the position of the active branch, given the parameters before it in `order`;
        None where the parameter is inactive."""
        for position, branch in enumerate(self.parameters[name].branches):
            if branch.condition is None or branch.condition.value(values.__getitem__):
                return position
        return None

    def walk(self, choose: Callable[[str, int, Branch], ParamValue]) -> Flat:
        """Return a configuration: `choose` is called with name, position and branch of each active
        parameter and returns its value."""
        values: Flat = {}
        for name in self.order:
            position = self.active(name, values)
            if position is not None:
                branch = self.parameters[name].branches[position]
                values[name] = choose(name, position, branch)
        return {name: values[name] for name in self.parameters if name in values}

    def stored(self, values: Flat) -> Flat:
        """Return the values by their names in storage."""
        result = {}
        for name, value in values.items():
            position = self.active(name, values)
            assert position is not None
            result[self.stored_names[name, position]] = value
        return result

    def broken(
        self, values: Mapping[str, object], constraints: Iterable[Constraint] | None = None
    ) -> list[Constraint]:
        """Return the constraints that are violated, of those given or of all."""
        nested: dict[str, Any] | None = None
        broken = []
        for constraint in self.constraints if constraints is None else constraints:
            if constraint.expression is not None:
                holds = constraint.expression.value(values.__getitem__)
            elif constraint.over is not None:
                if any(name not in values for name in constraint.over):
                    continue
                holds = _call(constraint, nest({name: values[name] for name in constraint.over}))
            else:
                nested = nest(values) if nested is None else nested
                holds = _call(constraint, nested)
            if holds is False:
                broken.append(constraint)
        return broken

    def mistakes(self, values: Mapping[str, object], *, partial: bool = False) -> list[str]:
        """Return the reasons why a configuration is not in this space; [] if it is. With
        `partial`, values may be missing."""
        found = []
        for name in self.order:
            position = self.active(name, values)
            if position is None:
                if name in values:
                    found.append(f"{name} is not active")
            elif name not in values:
                found += [] if partial else [f"{name} is missing"]
            elif not (branch := self.parameters[name].branches[position]).contains(values[name]):
                found.append(f"{name} = {values[name]!r} is not {branch}")
        found += [
            f"unknown parameter {name!r}{nearest(name, self.parameters)}"
            for name in values
            if name not in self.parameters
        ]
        return found or [f"breaks {constraint}" for constraint in self.broken(values)]

    def defaults(self) -> Flat | None:
        """Return the configuration of all defaults; None where an active parameter has none."""
        try:
            return self.walk(lambda _name, _position, branch: _default(branch))
        except LookupError:
            return None

    def sample(self, trial: BaseTrial) -> dict[str, Any]:
        """Suggest a configuration with an Optuna trial: nested, without inactive parameters.

        It is always feasible with a SpaceSampler (of `sampler_for`, or of a study from
        `open_study`).
        """
        values = self.walk(lambda *where: _suggest(trial, self.stored_names[where[:2]], where[2]))
        if broken := self.broken(values):
            raise UserError(
                listed(
                    "This configuration breaks the space's constraints. Its values were enqueued, "
                    "or the study's sampler does not know the space: open the study with "
                    "supermax.open_study, or give it supermax.space.sampler_for(space, sampler).",
                    map(str, broken),
                )
            )
        return nest(values)


def _suggest(trial: BaseTrial, stored: str, branch: Branch) -> ParamValue:
    if isinstance(branch, Categorical):
        return trial.suggest_categorical(stored, branch.choices)
    low, high = branch.low, branch.high
    if isinstance(branch, Float):
        return trial.suggest_float(stored, low, high, step=branch.step, log=branch.log)
    return trial.suggest_int(stored, branch.low, branch.high, step=branch.step, log=branch.log)


def _call(constraint: Constraint, nested: dict[str, Any]) -> bool:
    """Return the result of a constraint's function; False where it raises an exception."""
    try:
        function = constraint.function
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"The constraint {constraint.name!r} cannot be evaluated: {error}."
        ) from error
    try:
        return bool(function(nested))
    except Exception:
        return False


def _default(branch: Branch) -> ParamValue:
    if not branch.has_default:
        raise LookupError
    return branch.default


def _same_domain(one: BaseDistribution, other: BaseDistribution) -> bool:
    if isinstance(one, CategoricalDistribution) and isinstance(other, CategoricalDistribution):
        return repr(one.choices) == repr(other.choices)  # 1 and true are equal, yet not the same
    return one == other


def nest(values: Mapping[str, object]) -> dict[str, Any]:
    """Nest a flat configuration: {"optim.lr": 1} → {"optim": {"lr": 1}}"""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *folders, last = name.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return nested


def flatten(nested: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten a nested configuration: {"optim": {"lr": 1}} → {"optim.lr": 1}"""
    flat: dict[str, object] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def choices(space: Space, name: str) -> list[object]:
    """Return the choices of a parameter in all its branches."""
    found: dict[object, None] = {}
    for branch in space.parameters[name].branches:
        if isinstance(branch, Categorical):
            found |= dict.fromkeys(branch.choices)
    return list(found)
