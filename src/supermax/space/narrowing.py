"""Restriction of a space to fewer values, as flags, settings and presets ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supermax._util.text import listed, nearest
from supermax.errors import UserError
from supermax.space.domains import Branch, Categorical, Constraint
from supermax.space.expression import same_value
from supermax.space.feasible import TooLarge, search
from supermax.space.model import Space


def narrowed(space: Space, wanted: Mapping[str, Any]) -> Space:
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
    try:
        return search(space, [condition]) is not None
    except TooLarge:
        return True


def _wrong(branches: tuple[Branch, ...], values: Any) -> list[str]:
    if isinstance(values, Mapping):
        return _wrong_ends(branches, values)
    many = values if isinstance(values, (list, tuple)) else [values]
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


def _wrong_ends(branches: tuple[Branch, ...], ends: Mapping[Any, Any]) -> list[str]:
    wrong = [
        f"unknown key {key!r}; there are low, high" for key in ends if key not in ("low", "high")
    ]
    numbers = {
        k: v for k, v in ends.items() if isinstance(v, (int, float)) and not isinstance(v, bool)
    }
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


def _rest(branch: Branch, values: Any) -> dict[str, Any] | None:
    """Return the rest of a branch as data; None where nothing is left."""
    data = branch.data()
    if isinstance(values, (list, tuple)) and len(values) == 1:
        (values,) = values
    if isinstance(branch, Categorical):
        many = values if isinstance(values, (list, tuple)) else [values]
        data["choices"] = [
            c for c in branch.choices if any(same_value(c, value) for value in many)
        ]
        if not data["choices"]:
            return None
    elif isinstance(values, Mapping):
        data["low"], data["high"] = _ends(branch, values)
        if data["low"] > data["high"]:
            return None
    elif not branch.contains(values):
        return None
    else:
        data["low"] = data["high"] = values
        data.pop("step", None)
    if "default" in data and not _fits(branch, data):
        del data["default"]
        only = data["choices"] if isinstance(branch, Categorical) else [data["low"], data["high"]]
        if all(same_value(value, only[0]) for value in only):
            data["default"] = only[0]
    return data


def _ends(branch: Any, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the new ends, moved inwards to multiples of the range's step."""
    low = max(values.get("low", branch.low), branch.low)
    high = min(values.get("high", branch.high), branch.high)
    step = branch.step if not branch.log else None
    if step:
        low = branch.low + math.ceil((low - branch.low) / step - 1e-9) * step
        high = branch.low + math.floor((high - branch.low) / step + 1e-9) * step
    return low, high


def _fits(branch: Branch, data: dict[str, Any]) -> bool:
    bare = {key: value for key, value in data.items() if key != "default"}
    return type(branch).model_validate(bare).contains(data["default"])
