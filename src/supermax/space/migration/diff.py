"""Differences between two spaces.

old Space, new Space ──changes()──▶ [Change]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supermax.space.domains import Branch, Categorical, Constraint, Float, Int, Parameter
from supermax.space.expression import same_value
from supermax.space.model import Space

MINOR = frozenset({"default changed", "reason changed"})
"""Kinds of change that need no new version: every trial stays valid."""


@dataclass(frozen=True)
class Change:
    """Difference between two spaces."""

    kind: str
    name: str
    detail: str = ""

    @property
    def minor(self) -> bool:
        return self.kind in MINOR

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" + (f" ({self.detail})" if self.detail else "")


def changes(old: Space, new: Space) -> list[Change]:
    """Return all differences; [] for equal spaces."""
    found = list(_changes(old, new))
    removed = {c.name: old.parameters[c.name] for c in found if c.kind == "removed"}
    return [_with_hint(change, removed, new) for change in found]


def _with_hint(change: Change, removed: dict[str, Parameter], new: Space) -> Change:
    """Add a hint to an added parameter whose domain is that of a removed one: it may be
    renamed."""
    if change.kind == "added":
        for name, parameter in removed.items():
            domains = [str(b) for b in new.parameters[change.name].branches]
            if [str(b) for b in parameter.branches] == domains:
                hint = f"{change.detail}; if it is {name} under another name, write was: {name}"
                return Change(change.kind, change.name, hint)
    return change


def _changes(old: Space, new: Space) -> Iterator[Change]:
    if old.version != new.version:
        yield Change("version", f"{old.version} → {new.version}")
    renamed = renames(old, new)
    for name, parameter in new.parameters.items():
        before = renamed.get(name, name)
        if before not in old.parameters:
            yield Change("added", name, _described(parameter))
            continue
        if before != name:
            yield Change("renamed", f"{before} → {name}")
        yield from _parameter(name, old.parameters[before], parameter)
    former = set(renamed.values())
    for name, parameter in old.parameters.items():
        if name not in new.parameters and name not in former:
            yield Change("removed", name, _described(parameter))
    yield from _constraints(old, new)


def renames(old: Space, new: Space) -> dict[str, str]:
    """Return the old name by new name, of parameters whose `was` names one of the old space."""
    found: dict[str, str] = {}
    for name, parameter in new.parameters.items():
        if name in old.parameters:
            continue
        for before in parameter.was:
            if before in old.parameters and before not in new.parameters:
                found.setdefault(name, before)
    return found


def _described(parameter: Parameter) -> str:
    texts = []
    for branch in parameter.branches:
        text = str(branch)
        if branch.when is not None:
            text += f" when {branch.when}"
        if branch.has_default:
            text += f", default {branch.default!r}"
        texts.append(text)
    return "; ".join(texts)


def _parameter(name: str, old: Parameter, new: Parameter) -> Iterator[Change]:
    if len(old.branches) == len(new.branches) == 1:
        one, other = old.branches[0], new.branches[0]
        yield from _branch(name, one, other, "")
        if one.when != other.when:
            detail = f"{_when(one, 'always')} → {_when(other, 'always')}"
            yield Change("condition changed", name, detail)
        return
    before = {branch.when: branch for branch in old.branches}
    after = {branch.when: branch for branch in new.branches}
    for when, branch in after.items():
        if when in before:
            yield from _branch(name, before[when], branch, f", {_when(branch)}")
        else:
            yield Change("condition changed", name, f"now also {branch} {_when(branch)}")
    for when, branch in before.items():
        if when not in after:
            yield Change("condition changed", name, f"no longer {branch} {_when(branch)}")
    if [b for b in before if b in after] != [b for b in after if b in before]:
        yield Change("condition changed", name, "its branches are tried in another order")


def _when(branch: Branch, default: str = "otherwise") -> str:
    return default if branch.when is None else f"when {branch.when}"


def _branch(name: str, old: Branch, new: Branch, where: str) -> Iterator[Change]:
    if type(old) is not type(new):
        yield Change("kind changed", name, f"{old} → {new}{where}")
    elif isinstance(old, Categorical) and isinstance(new, Categorical):
        yield from _choices(name, old.choices, new.choices, where)
    elif not isinstance(old, Categorical) and not isinstance(new, Categorical):
        yield from _range(name, old, new, where)
    if _default(old) != _default(new):
        yield Change("default changed", name, f"{_default(old)} → {_default(new)}{where}")


def _default(branch: Branch) -> str:
    return repr(branch.default) if branch.has_default else "none"


def _choices(
    name: str, old: Sequence[object], new: Sequence[object], where: str
) -> Iterator[Change]:
    added, removed = _without(new, old), _without(old, new)
    if added:
        yield Change("choices added", name, _all(added) + where)
    if removed:
        yield Change("choices removed", name, _all(removed) + where)
    if not added and not removed and [repr(c) for c in old] != [repr(c) for c in new]:
        yield Change("choices reordered", name, _all(new) + where)


def _without(some: Sequence[object], others: Sequence[object]) -> list[object]:
    return [one for one in some if not any(same_value(one, other) for other in others)]


def _all(choices: Sequence[object]) -> str:
    return ", ".join("null" if choice is None else str(choice) for choice in choices)


def _range(name: str, old: Float | Int, new: Float | Int, where: str) -> Iterator[Change]:
    if (old.low, old.high) != (new.low, new.high):
        wider = new.low <= old.low and new.high >= old.high
        narrower = new.low >= old.low and new.high <= old.high
        kind = "widened" if wider else "narrowed" if narrower else "moved"
        yield Change(kind, name, f"{old} → {new}{where}")
    elif (old.log, old.step) != (new.log, new.step):
        yield Change("scale changed", name, f"{old} → {new}{where}")


def _constraints(old: Space, new: Space) -> Iterator[Change]:
    before = {constraint.name: constraint for constraint in old.constraints}
    after = {constraint.name: constraint for constraint in new.constraints}
    for name, constraint in after.items():
        if name not in before:
            yield Change("constraint added", name, _rule(constraint))
        elif _rule(before[name]) != _rule(constraint):
            detail = f"{_rule(before[name])} → {_rule(constraint)}"
            yield Change("constraint changed", name, detail)
        elif before[name].reason != constraint.reason:
            yield Change("reason changed", name, constraint.reason)
    for name, constraint in before.items():
        if name not in after:
            yield Change("constraint removed", name, _rule(constraint))


def _rule(constraint: Constraint) -> str:
    over = f" over {', '.join(constraint.over)}" if constraint.over is not None else ""
    return constraint.rule + over
