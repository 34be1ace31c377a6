"""Validation of a space as it was written. Reports all mistakes at once.

plain data ──examined()──▶ parameters, [Problem(path, text)]    path: keys to the mistake
"""

from __future__ import annotations

import graphlib
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supermax._util.text import edits, nearest
from supermax._util.yaml_lines import Path
from supermax.space import expression
from supermax.space.domains import KINDS, Branch, Categorical, Constraint, Parameter
from supermax.space.expression import BadExpression

NAME = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_Model = TypeVar("_Model", bound=BaseModel)
_LITERALS = ("true", "false", "null")
_KEYS = ("name", "version", "description", "extends", "parameters", "constraints")
Placed = Mapping[str, list[tuple[Path, Branch]]]
"""Valid branches by parameter, each with its path in the data."""


@dataclass(frozen=True)
class Problem:
    """Mistake in a space, with its path in the data."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{_where(self.path)}: {self.text}" if self.path else self.text


def examined(data: object, *, slips: bool = False) -> tuple[dict[str, Parameter], list[Problem]]:
    """Return the parameters, from any notation, and all mistakes. With a mistake, no parameters.

    With `slips`, a comparison with a value that is almost a choice is a mistake too. That is a
    typing error in a file, but in data it may be a choice that was removed by narrowing.
    """
    if not isinstance(data, Mapping):
        return {}, [Problem((), "a space is a mapping with the key 'parameters'")]
    found = [
        Problem((key,), f"unknown key {key!r}{nearest(str(key), _KEYS)}")
        for key in data
        if key not in _KEYS
    ]
    found += _wrong_head(data)
    parameters = data.get("parameters")
    if not isinstance(parameters, Mapping) or not parameters:
        text = "a space needs 'parameters': a mapping from names to ranges or choices"
        found.append(Problem(("parameters",) if "parameters" in data else (), text))
        return {}, found
    good, earlier, wrong = _parameters(parameters)
    found += wrong
    names = [name for name in parameters if isinstance(name, str)]
    found += _wrong_names(names)
    found += _wrong_conditions(good, names)
    found += _cycles(good)
    found += _wrong_constraints(data.get("constraints"), good, names)
    found += _slips(data, good) if slips else []
    if found:
        return {}, found
    return {n: Parameter(branches=tuple(b for _, b in good[n]), was=earlier[n]) for n in good}, []


def _wrong_head(data: Mapping[str, object]) -> Iterable[Problem]:
    for key in ("name", "description"):
        if key in data and not isinstance(data[key], str):
            yield Problem((key,), f"{key} must be text, but is {data[key]!r}")
    version = data.get("version", 1)
    if type(version) is not int or version < 1:
        yield Problem(("version",), f"version must be a whole number from 1 on, not {version!r}")


def _parameters(
    parameters: Mapping[str, object],
) -> tuple[Placed, dict[str, tuple[str, ...]], list[Problem]]:
    """Return the valid branches, the earlier names of parameters, and the mistakes."""
    good: dict[str, list[tuple[Path, Branch]]] = {}
    earlier: dict[str, tuple[str, ...]] = {}
    found: list[Problem] = []
    for name, written in parameters.items():
        path: Path = ("parameters", name)
        branches, was = _split(written, path)
        if not branches:
            found.append(Problem(path, "it has no branch"))
        found += _earlier_names(was, path, parameters)
        earlier[name] = tuple(_names_in(was))
        parsed = [(where, _branch(branch, where, found)) for where, branch in branches]
        good[name] = [(where, branch) for where, branch in parsed if branch is not None]
        for where, branch in good[name]:
            if branch.when is None and where != branches[-1][0]:
                text = "a branch without 'when' is always taken: those after it never are"
                found.append(Problem(where, text))
    return good, earlier, found


def _split(written: object, path: Path) -> tuple[list[tuple[Path, object]], object]:
    """Return a parameter's branches, each with its path, and its earlier names."""
    if isinstance(written, Parameter):
        return [((*path, i), branch) for i, branch in enumerate(written.branches)], written.was
    if isinstance(written, (list, tuple)):
        return [((*path, i), branch) for i, branch in enumerate(written)], None
    if not isinstance(written, Mapping):
        return [(path, written)], None
    was = written.get("was")
    if isinstance(written.get("branches"), (list, tuple)):
        branches: list[tuple[Path, object]] = [
            ((*path, "branches", i), b) for i, b in enumerate(written["branches"])
        ]
        misplaced = [key for key in written if key not in ("branches", "was")]
        return branches + [((*path, key), {"branches": None, key: 0}) for key in misplaced], was
    return [(path, {key: value for key, value in written.items() if key != "was"})], was


def _branch(written: object, path: Path, found: list[Problem]) -> Branch | None:
    """Return a branch; None, with its mistakes appended to `found`, where it is invalid."""
    if isinstance(written, Branch):
        return written
    if not isinstance(written, Mapping):
        text = f"needs a mapping like {{type: float, low: 0, high: 1}}, but is {written!r:.60}"
        found.append(Problem(path, text))
        return None
    if "branches" in written:
        key = next((key for key in written if key != "branches"), "branches")
        found.append(Problem(path, f"{key!r} belongs into each of the branches"))
        return None
    kind = written.get("type", "categorical" if "choices" in written else None)
    if not (kind is None or isinstance(kind, str)):
        found.append(Problem((*path, "type"), f"type is float or int, not {kind!r:.40}"))
        return None
    if kind == "categorical" and not _are_plain(written.get("choices")):
        text = "choices is a list of words, numbers, true, false or null"
        found.append(Problem((*path, "choices") if "choices" in written else path, text))
        return None
    if kind not in KINDS:
        known = ("type", "choices", "low", "high", "log", "step", "default", "when")
        strange = [key for key in written if key not in known]
        text = "needs a type (float or int with low and high) or choices"
        if strange:
            text = f"unknown key {strange[0]!r}{nearest(str(strange[0]), known)}"
        if kind is not None:
            text = f"unknown type {kind!r}{nearest(str(kind), list(KINDS))}"
        found.append(Problem((*path, "type") if "type" in written else path, text))
        return None
    branch = _model(KINDS[kind], {**written, "type": kind}, path, found)
    if branch is None and "default" in written:  # good enough to check conditions against
        bare = {key: value for key, value in written.items() if key != "default"}
        branch = _model(KINDS[kind], {**bare, "type": kind}, path, [])
    return branch


def _are_plain(choices: object) -> bool:
    return isinstance(choices, (list, tuple)) and all(
        choice is None or isinstance(choice, (bool, int, float, str)) for choice in choices
    )


def _model(
    model: type[_Model], written: Mapping[str, object], path: Path, found: list[Problem]
) -> _Model | None:
    """Return an instance of `model`; None, with all mistakes appended to `found`, if invalid."""
    try:
        return model.model_validate(written)
    except ValidationError as error:
        for detail in error.errors():
            text = _sentence(detail, model)
            place = list(detail["loc"]) or (["default"] if "the default" in text else [])
            keep = place[:1] if place and place[0] in written else []
            found.append(Problem((*path, *keep), text))
        return None


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    key = str(detail["loc"][0]) if detail["loc"] else ""
    match detail["type"]:
        case "extra_forbidden":
            known = [name for name in model.model_fields if name != "type"]
            return f"unknown key {key!r}{nearest(key, known)}"
        case "too_short":
            return f"{key!r} is empty"
        case "missing":
            return f"{key!r} is missing"
        case "value_error":
            return str(detail["ctx"]["error"])
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            return f"{message}, but is {detail['input']!r:.60}"


def _earlier_names(was: object, path: Path, parameters: Mapping[str, object]) -> Iterable[Problem]:
    names = [was] if isinstance(was, str) else was
    if names is None:
        return
    if not (isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)):
        yield Problem((*path, "was"), f"was must be an earlier name or a list, not {was!r:.60}")
        return
    for name in names:
        if name in parameters:
            yield Problem((*path, "was"), f"{name!r} is still there, so it was not renamed")
        for other, written in parameters.items():
            if other == path[-1]:
                break
            if isinstance(written, Mapping) and name in _names_in(written.get("was")):
                yield Problem((*path, "was"), f"{name!r} has become {other!r} already")


def _names_in(was: object) -> list[str]:
    return [was] if isinstance(was, str) else list(was) if isinstance(was, (list, tuple)) else []


def _wrong_names(names: Sequence[str]) -> Iterable[Problem]:
    for name in names:
        parts = name.split(".")
        if not NAME.match(name):
            text = "a name is made of words (letters, digits, _) joined by dots, like optim.lr"
            yield Problem(("parameters", name), text)
        elif taken := [part for part in parts if keyword.iskeyword(part) or name in _LITERALS]:
            text = f"{taken[0]!r} means something else in conditions: choose another name"
            yield Problem(("parameters", name), text)
        for other in names:
            if name.startswith(f"{other}."):
                yield Problem(
                    ("parameters", name), f"cannot stand inside {other!r}, which is a value itself"
                )


def _wrong_conditions(good: Placed, names: Sequence[str]) -> Iterable[Problem]:
    for branches in good.values():
        for path, branch in branches:
            if branch.when is not None:
                for text in _wrong_expression(branch.when, good, names):
                    yield Problem((*path, "when"), text)


def _wrong_expression(text: str, good: Placed, names: Sequence[str]) -> Iterable[str]:
    try:
        parsed = expression.parse(text)
    except BadExpression as error:
        yield str(error)
        return
    for name in sorted(parsed.numeric):
        branches = [branch for _, branch in good.get(name, ())]
        if branches and all(_are_words(branch) for branch in branches):
            yield f"{name} is a word: it can be compared with == and in, not computed with"
    for unknown in sorted(parsed.names - set(names)):
        yield f"unknown parameter {unknown!r}{nearest(unknown, names)}{_unquoted(text, good)}"


def _slips(data: Mapping[str, object], good: Placed) -> list[Problem]:
    texts = [((*path, "when"), b.when) for placed in good.values() for path, b in placed]
    constraints = data.get("constraints")
    for position, item in enumerate(constraints if isinstance(constraints, list) else ()):
        if isinstance(item, Mapping):
            texts.append((("constraints", position, "require"), item.get("require")))
    return [
        Problem(path, slip)
        for path, text in texts
        if isinstance(text, str)
        for slip in _mistyped(text, good)
    ]


def _mistyped(text: str, good: Placed) -> Iterable[str]:
    try:
        compared = expression.parse(text).compared
    except BadExpression:
        return
    for name, values in compared:
        branches = [branch for _, branch in good.get(name, ()) if isinstance(branch, Categorical)]
        choices = [c for branch in branches for c in branch.choices if isinstance(c, str)]
        words = [value for value in values if isinstance(value, str)]
        for value in words:
            if choices and value not in choices:
                close = [choice for choice in choices if _almost(value, choice)]
                if close:
                    yield f"{name} is never {value!r}; did you mean {close[0]!r}?"


def _almost(value: str, choice: str) -> bool:
    """Return True for words that differ by one edit, or by two in longer words."""
    shorter = min(len(value), len(choice))
    return shorter > 2 and edits(value, choice) <= (2 if shorter > 4 else 1)


def _are_words(branch: Branch) -> bool:
    return isinstance(branch, Categorical) and all(isinstance(c, str) for c in branch.choices)


def _unquoted(text: str, good: Placed) -> str:
    """Return a hint where a choice is written without quotes: `encoder == bert-base` parses as a
    subtraction."""
    for branches in good.values():
        for _, branch in branches:
            for choice in getattr(branch, "choices", ()):
                if (
                    isinstance(choice, str)
                    and choice
                    and re.search(rf"(?<!['\"\w]){re.escape(choice)}(?!['\"\w])", text)
                ):
                    return f"; text needs quotes: {choice!r}"
    return ""


def _cycles(good: Placed) -> Iterable[Problem]:
    needs = {name: parameters_needed_by(b for _, b in placed) for name, placed in good.items()}
    while True:
        try:
            graphlib.TopologicalSorter(needs).prepare()
        except graphlib.CycleError as error:
            cycle: list[str] = error.args[1][::-1]
            chain = " needs ".join(cycle)
            yield Problem(("parameters", cycle[0]), f"the conditions go in a circle: {chain}")
            for name in set(cycle):
                del needs[name]
        else:
            return


def parameters_needed_by(branches: Iterable[Branch]) -> set[str]:
    """Return the parameters that the conditions of the branches depend on."""
    needed: set[str] = set()
    for branch in branches:
        try:
            condition = branch.condition
        except BadExpression:
            continue
        if condition is not None:
            needed |= condition.names
    return needed


def _wrong_constraints(written: object, good: Placed, names: Sequence[str]) -> Iterable[Problem]:
    if written is None:
        return
    if not isinstance(written, (list, tuple)):
        yield Problem(("constraints",), "constraints is a list")
        return
    seen: set[str] = set()
    for position, item in enumerate(written):
        path: Path = ("constraints", position)
        if isinstance(item, Constraint):
            constraint: Constraint | None = item
        elif not isinstance(item, Mapping):
            yield Problem(path, "a constraint has a name, a reason, and 'require' or 'python'")
            continue
        else:
            found: list[Problem] = []
            constraint = _model(Constraint, item, path, found)
            yield from found
        if constraint is None:
            continue
        if constraint.name in seen:
            yield Problem(path, f"there are two constraints named {constraint.name!r}")
        seen.add(constraint.name)
        if constraint.require is not None:
            for text in _wrong_expression(constraint.require, good, names):
                yield Problem((*path, "require"), text)
        for unknown in sorted(set(constraint.over or ()) - set(names)):
            yield Problem(
                (*path, "over"), f"unknown parameter {unknown!r}{nearest(unknown, names)}"
            )


def _where(path: Path) -> str:
    match path:
        case ("parameters", name, *rest):
            return _joined(str(name), rest)
        case ("constraints", int() as position, *rest):
            return _joined(f"constraint {position + 1}", rest)
    return " ".join(map(str, path))


def _joined(head: str, rest: Sequence[str | int]) -> str:
    words = [head]
    for part in rest:
        if isinstance(part, int):
            words.append(f"branch {part + 1}")
        elif part != "branches":
            words.append(part)
    return ", ".join(words)
