"""Hypothesis strategies of spaces: conditions, branches, constraints, every kind of domain."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from supermax.errors import UserError
from supermax.space import Space
from supermax.space.feasible import witness

NAMES = ["a", "b.c", "b.d", "e", "f.g.h", "i_1"]
WORDS = ["adamw", "lion", "bert-base", "x/y", "it's", "", "null"]


@st.composite
def domains(draw: st.DrawFn, default: bool | None = None) -> dict[str, Any]:
    kind = draw(st.sampled_from(["float", "log", "step", "int", "int log", "words", "mixed"]))
    low = draw(st.integers(1, 5))
    high = low + draw(st.integers(0, 6))
    data: dict[str, Any]
    if kind == "float":
        data = {"type": "float", "low": -float(low), "high": float(high)}
        values: Any = st.floats(-float(low), float(high))
    elif kind == "log":
        data = {"type": "float", "low": low * 1e-6, "high": high * 1e-3, "log": True}
        values = st.floats(low * 1e-6, high * 1e-3)
    elif kind == "step":
        data = {"type": "float", "low": 0.0, "high": high * 0.25, "step": 0.25}
        values = st.integers(0, high).map(lambda n: n * 0.25)
    elif kind == "int":
        data = {"type": "int", "low": low, "high": high}
        values = st.integers(low, high)
    elif kind == "int log":
        data = {"type": "int", "low": low, "high": high, "log": True}
        values = st.integers(low, high)
    else:
        pool: list[Any] = WORDS if kind == "words" else [1, 2.5, "1", None, 16, -3]
        choices = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4, unique_by=repr))
        data = {"choices": choices}
        values = st.sampled_from(choices)
    if draw(st.booleans()) if default is None else default:
        data["default"] = draw(values)
    return data


def compared(draw: st.DrawFn, name: str, domain: dict[str, Any]) -> str:
    """Return a condition on a parameter that is sometimes true."""
    if "choices" in domain:
        some = draw(st.lists(st.sampled_from(domain["choices"]), min_size=1, max_size=2))
        return f"{name} in [{', '.join(map(repr, some))}]"
    middle = (domain["low"] + domain["high"]) / 2
    return f"{name} {draw(st.sampled_from(['<=', '>=']))} {middle!r}"


@st.composite
def space_data(draw: st.DrawFn, default: bool | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    plain: dict[str, dict[str, Any]] = {}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        domain = draw(domains(default=default))
        if plain and draw(st.integers(0, 2)) == 0:
            parent = draw(st.sampled_from(list(plain)))
            when = compared(draw, parent, plain[parent])
            if draw(st.booleans()):
                parameters[name] = [{"when": when, **domain}, draw(domains(default=default))]
            else:
                parameters[name] = {"when": when, **domain}
        else:
            parameters[name] = domain
        plain[name] = domain
    constraints = []
    for number in range(draw(st.integers(0, 2))):
        names = draw(st.lists(st.sampled_from(list(plain)), min_size=1, max_size=2, unique=True))
        text = f" {draw(st.sampled_from(['or', 'and']))} ".join(
            compared(draw, name, plain[name]) for name in names
        )
        constraints.append({"name": f"c{number}", "reason": "drawn", "require": text})
    return {"name": "drawn", "parameters": parameters, "constraints": constraints}


def _is_feasible(space: Space) -> bool:
    try:
        witness(space)
    except UserError:
        return False
    return True


def spaces(default: bool | None = None) -> st.SearchStrategy[Space]:
    return space_data(default=default).map(lambda data: Space(**data))


def feasible_spaces(default: bool | None = None) -> st.SearchStrategy[Space]:
    return spaces(default=default).filter(_is_feasible)
