"""Restriction of a space to fewer values, as flags, settings and presets ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from supermax._util.text import listed, nearest
from supermax.errors import UserError
from supermax.space.domains import Branch, Categorical, Constraint, Float, Int, is_number
from supermax.space.expression import same_value
from supermax.space.feasible import possible
from supermax.space.model import Space


def narrowed(space: Space, wanted: Mapping[str, object]) -> Space:
    """Return the space with these parameters restricted.

    A list keeps those choices, {"low": 1, "high": 2} moves the ends of a range inwards, and a
    single value, also in a list, fixes the parameter. A default outside the remaining values is
    dropped. An empty branch raises UserError, unless its condition can no longer hold.
    """
    found: list[str] = []
    data = space.data()
    for name, values in wanted.items():
        if name not in space.parameters:
            found.append(f"unknown parameter {name!r}{nearest(name, space.parameters)}")
        else:
            found += [
                f"{name}: {text}" for text in _wrong(space.parameters[name].branches, values)
            ]
    if found:
        raise UserError(listed("The space cannot be narrowed like this:", found))
    for name, values in sorted(
        wanted.items(), key=lambda item: _dependents(space, item[0]), reverse=True
    ):
        parameter = space.parameters[name]
        rest = []
        for branch in parameter.branches:
            left = _rest(branch, values)
            if left is not None:
                rest.append(left)
            elif _can_be_active(Space(**data), branch):
                where = f" when {branch.when}" if branch.when else ""
                found.append(f"{name}: {values!r} leaves nothing of {branch}{where}")
        if rest:
            was = {"was": list(parameter.was)} if parameter.was else {}
            data["parameters"][name] = {"branches": rest, **was}
    if found:
        raise UserError(listed("The space cannot be narrowed like this:", found))
    return Space(**data)


def _dependents(space: Space, name: str) -> int:
    """Return the number of conditions that depend on a parameter; most dependents come first."""
    branches = [b for parameter in space.parameters.values() for b in parameter.branches]
    return sum(b.condition is not None and name in b.condition.names for b in branches)


def _can_be_active(space: Space, branch: Branch) -> bool:
    """Return False if it is certain that the branch's condition cannot hold."""
    if branch.when is None:
        return True
    condition = Constraint(name="taken", reason="-", require=branch.when)
    return possible(space, [condition])


def _wrong(branches: tuple[Branch, ...], values: object) -> list[str]:
    if isinstance(values, Mapping):
        return _wrong_ends(branches, values)
    many = _listed(values)
    if not many:
        return ["an empty list leaves nothing"]
    if len(many) > 1 and not any(isinstance(b, Categorical) for b in branches):
        return [
            f"it is a range ({_allowed(branches)}): write {{low: ..., high: ...}} or one value"
        ]
    choices = [str(c) for b in branches if isinstance(b, Categorical) for c in b.choices]
    allowed = _allowed(branches)
    return [
        f"no such value {value!r}{nearest(str(value), choices) or f'; allowed: {allowed}'}"
        for value in many
        if not any(branch.contains(value) for branch in branches)
    ]


def _allowed(branches: tuple[Branch, ...]) -> str:
    return "; ".join(f"{b} when {b.when}" if b.when else str(b) for b in branches)


def _wrong_ends(branches: tuple[Branch, ...], ends: Mapping[str, object]) -> list[str]:
    wrong = [
        f"unknown key {key!r}; there are low, high" for key in ends if key not in ("low", "high")
    ]
    numbers = {key: value for key, value in ends.items() if is_number(value)}
    wrong += [
        f"{key} must be a number, not {ends[key]!r:.40}" for key in ends if key not in numbers
    ]
    ranges = [b for b in branches if not isinstance(b, Categorical)]
    if not ranges:
        return ["it has choices: narrow it by a list"]
    if wrong:
        return wrong
    allowed = f"allowed: {_allowed(branches)}"
    if "low" in numbers and numbers["low"] < min(b.low for b in ranges):
        wrong.append(f"low {numbers['low']} is below the space's own; {allowed}")
    if "high" in numbers and numbers["high"] > max(b.high for b in ranges):
        wrong.append(f"high {numbers['high']} is above the space's own; {allowed}")
    return wrong


def _rest(branch: Branch, values: object) -> dict[str, object] | None:
    """Return the rest of a branch as data; None where nothing is left."""
    many = _listed(values)
    data = branch.data()
    left: list[object]
    if isinstance(branch, Categorical):
        left = [c for c in branch.choices if any(same_value(c, value) for value in many)]
        data["choices"] = left
    elif isinstance(values, Mapping):
        low, high = _ends(branch, values)
        left = [low, high] if low <= high else []
        data |= {"low": low, "high": high}
    else:
        left = [many[0]] if len(many) == 1 and branch.contains(many[0]) else []
        data |= dict.fromkeys(("low", "high"), many[0])
        data.pop("step", None)
    if not left:
        return None
    bare = {key: value for key, value in data.items() if key != "default"}
    if not branch.has_default or type(branch).model_validate(bare).contains(branch.default):
        return data
    single = all(same_value(value, left[0]) for value in left)
    return {**bare, "default": left[0]} if single else bare


def _listed(values: object) -> Sequence[object]:
    return values if isinstance(values, (list, tuple)) else [values]


def _ends(branch: Float | Int, values: Mapping[str, float]) -> tuple[float, float]:
    """Return the new ends, moved inwards to multiples of the range's step."""
    low = max(values.get("low", branch.low), branch.low)
    high = min(values.get("high", branch.high), branch.high)
    if branch.step and not branch.log:
        low = branch.low + math.ceil((low - branch.low) / branch.step - 1e-9) * branch.step
        high = branch.low + math.floor((high - branch.low) / branch.step + 1e-9) * branch.step
    return low, high
