"""A space with fewer values: from a flag, an environment variable, or a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supermax.errors import UserError
from supermax.space.domains import Branch, Categorical
from supermax.space.expression import same
from supermax.space.model import Space
from supermax.words import listed, nearest


def narrowed(space: Space, wanted: Mapping[str, Any]) -> Space:
    """The space with these parameters narrowed.

    A list keeps those choices, {"low": 1, "high": 2} moves the ends of a range, and a single
    value fixes the parameter. A default that is not among the rest goes.
    """
    found: list[str] = []
    data = space.data()
    for name, values in wanted.items():
        if name not in space.parameters:
            found.append(f"unknown parameter {name!r}{nearest(name, space.parameters)}")
            continue
        parameter = space.parameters[name]
        unknown = _unknown(parameter.branches, values)
        found += [f"{name}: {text}" for text in unknown]
        if unknown:
            continue
        branches = []
        for branch in parameter.branches:
            rest = _rest(branch, values)
            if rest is None:
                where = f" when {branch.when}" if branch.when else ""
                found.append(f"{name}: {values!r} leaves nothing of {branch}{where}")
            else:
                branches.append(rest)
        was = {"was": list(parameter.was)} if parameter.was else {}
        data["parameters"][name] = {"branches": branches, **was}
    if found:
        raise UserError(listed("The space cannot be narrowed like this:", found))
    return Space(**data)


def _unknown(branches: tuple[Branch, ...], values: Any) -> list[str]:
    if isinstance(values, Mapping):
        wrong = [key for key in values if key not in ("low", "high")]
        return [f"unknown key {key!r}; there are low, high" for key in wrong]
    many = values if isinstance(values, (list, tuple)) else [values]
    choices = [str(c) for b in branches if isinstance(b, Categorical) for c in b.choices]
    return [
        f"no such value {value!r}{nearest(str(value), choices)}"
        for value in many
        if not any(branch.contains(value) for branch in branches)
    ]


def _rest(branch: Branch, values: Any) -> dict[str, Any] | None:
    """What is left of a branch, as data; None when nothing is."""
    data = branch.data()
    if isinstance(branch, Categorical):
        if isinstance(values, Mapping):
            return None
        many = values if isinstance(values, (list, tuple)) else [values]
        data["choices"] = [c for c in branch.choices if any(same(c, value) for value in many)]
        if not data["choices"]:
            return None
    elif isinstance(values, Mapping):
        low, high = values.get("low", branch.low), values.get("high", branch.high)
        data["low"], data["high"] = max(low, branch.low), min(high, branch.high)
        if data["low"] > data["high"]:
            return None
    elif isinstance(values, (list, tuple)) or not branch.contains(values):
        return None
    else:
        data["low"] = data["high"] = values
        data.pop("step", None)
    if "default" in data and not _fits(branch, data):
        del data["default"]
    return data


def _fits(branch: Branch, data: dict[str, Any]) -> bool:
    bare = {key: value for key, value in data.items() if key != "default"}
    return type(branch).model_validate(bare).contains(data["default"])
