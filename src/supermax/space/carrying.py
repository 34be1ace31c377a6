"""What becomes of a trial in another version of its space: pure.

FrozenTrial, names it should have, new Space ──carried()──▶ FrozenTrial for the new study
                                                   └──────▶ Unfit: the reason, in words
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from supermax.naming import CLAIM, DRAWN, ORIGIN, plain_name, plain_params
from supermax.space.domains import Branch, Categorical
from supermax.space.expression import same
from supermax.space.model import Flat, Space

_QUEUED = "fixed_params"
_LOCAL = (CLAIM, DRAWN, "tpe:relative_params")  # attributes that mean nothing elsewhere


@dataclass(frozen=True)
class Unfit:
    """A trial that has no place in the new space."""

    reason: str


def root(trial: FrozenTrial, study_name: str) -> tuple[str, int]:
    """Where a trial was run first, however often it was carried over since."""
    origin = trial.system_attrs.get(ORIGIN)
    return (origin["study"], origin["number"]) if origin else (study_name, trial.number)


def expected(space: Space | None, trials: list[FrozenTrial]) -> Mapping[int, Set[str]]:
    """By number of a trial the parameters it should have if it was drawn completely."""
    if space is not None:
        return {t.number: set(_active(space, plain_params(t))) for t in trials}
    complete = [set(plain_params(t)) for t in trials if t.state is TrialState.COMPLETE]
    common = set.intersection(*complete) if complete else set()
    return {t.number: common for t in trials}


def _active(space: Space, values: Flat) -> list[str]:
    return [name for name in space.order if space.active(name, values) is not None]


def carried(
    trial: FrozenTrial, study_name: str, should_have: Set[str], new: Space
) -> FrozenTrial | Unfit:
    """The trial as the new study shall hold it. Finished trials keep all they have; one that
    was running or waiting is queued with its values."""
    origin = trial.system_attrs.get(ORIGIN, {})
    drawn = plain_params(trial)
    waiting = not trial.state.is_finished()
    queued = {plain_name(n): v for n, v in trial.system_attrs.get(_QUEUED, {}).items()}
    known = {**origin.get("removed", {}), **(queued if waiting else {}), **drawn}
    _rename(known, new)
    whole = not waiting and should_have <= set(drawn)
    fitted = _fit(known, new, assume=whole)
    if isinstance(fitted, Unfit):
        return fitted
    values, assumed = fitted
    if waiting and not values:
        return Unfit("it had not begun")
    if whole and (broken := new.broken(values)):
        return Unfit(f"breaks the constraint {broken[0].name}")
    start, number = root(trial, study_name)
    note: dict[str, Any] = {"study": start, "number": number}
    if assumed := [
        n
        for n in {**dict.fromkeys(origin.get("assumed", ())), **dict.fromkeys(assumed)}
        if n in values
    ]:
        note["assumed"] = assumed
    if removed := {name: value for name, value in known.items() if name not in values}:
        note["removed"] = removed
    return _rewritten(trial, new, values, note, waiting)


def _rename(known: Flat, new: Space) -> None:
    for name, parameter in new.parameters.items():
        for before in parameter.was:
            if name not in known and before in known and before not in new.parameters:
                known[name] = known.pop(before)


def _fit(known: Flat, new: Space, assume: bool) -> tuple[Flat, list[str]] | Unfit:
    """The known values that are active in the new space, and defaults where they may be assumed;
    without `assume`, what is not known stays open."""
    values: Flat = {}
    assumed: list[str] = []
    for name in new.order:
        position = new.active(name, values)
        if position is None:
            continue
        branch = new.parameters[name].branches[position]
        if name in known:
            if not branch.contains(known[name]):
                return Unfit(f"{name} = {known[name]!r} is no longer possible")
            values[name] = canonical(branch, known[name])
        elif assume and branch.has_default:
            values[name] = branch.default
            assumed.append(name)
        elif assume:
            return Unfit(f"{name} is new and has no default")
    return values, assumed


def canonical(branch: Branch, value: Any) -> Any:
    """The value as the domain spells it: 16, not 16.0."""
    if isinstance(branch, Categorical):
        return next(choice for choice in branch.choices if same(choice, value))
    return float(value) if branch.type == "float" else int(value)


def _rewritten(
    trial: FrozenTrial, new: Space, values: Flat, origin: dict[str, Any], waiting: bool
) -> FrozenTrial:
    system = {k: v for k, v in trial.system_attrs.items() if not k.startswith(_LOCAL)}
    system[ORIGIN] = origin
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    if waiting:
        system[_QUEUED] = values
    else:
        for name, value in values.items():
            position = new.active(name, values)
            assert position is not None
            stored = new.stored_names[name, position]
            params[stored] = value
            distributions[stored] = new.parameters[name].branches[position].distribution
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=TrialState.WAITING if waiting else trial.state,
        value=None,
        values=None if waiting else trial.values,
        datetime_start=None if waiting else trial.datetime_start,
        datetime_complete=None if waiting else trial.datetime_complete,
        params=params,
        distributions=distributions,
        user_attrs=dict(trial.user_attrs),
        system_attrs=system,
        intermediate_values={} if waiting else dict(trial.intermediate_values),
    )
