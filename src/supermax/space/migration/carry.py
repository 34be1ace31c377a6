"""Conversion of a trial to another version of its space. Pure.

FrozenTrial, expected parameters, new Space ──carried()──▶ FrozenTrial for the new study
                                                  └──────▶ Unfit: the reason
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import (
    CLAIM,
    CREATION,
    DRAWN,
    ORIGIN,
    RECORD,
    ParamValue,
    plain_name,
    plain_params,
)
from supermax.space.domains import Branch, Categorical, Float
from supermax.space.expression import same_value
from supermax.space.model import Flat, Space

_ENQUEUED = "fixed_params"
_REFERENCES = ("result_of", "repeats")  # items of RECORD: number of another trial of the study
_LOCAL = (
    CLAIM,
    CREATION,
    DRAWN,
    "tpe:relative_params",
)  # valid in one study only


@dataclass(frozen=True)
class Unfit:
    """Result for a trial that is not valid in the new space."""

    reason: str


Root = tuple[str, int]
"""Study and number under which a trial was run first."""


class Origin(TypedDict):
    """Attribute ORIGIN of a trial that was carried over."""

    study: str
    number: int
    assumed: NotRequired[list[str]]
    """Parameters that are newer than the trial, which took their defaults."""
    removed: NotRequired[Flat]
    """Values of parameters that the space no longer has."""


def root(trial: FrozenTrial, study_name: str) -> Root:
    """Return the study and number under which a trial was run first, before it was carried
    over."""
    origin = trial.system_attrs.get(ORIGIN)
    return (origin["study"], origin["number"]) if origin else (study_name, trial.number)


def roots(trials: Iterable[FrozenTrial], study_name: str) -> list[Root]:
    """Return the root of each trial, without duplicates: a copy of a carried trial that another
    program made, attributes included, is its own root."""
    seen: set[Root] = set()
    result = []
    for trial in trials:
        key = root(trial, study_name)
        result.append((study_name, trial.number) if key in seen else key)
        seen.add(result[-1])
    return result


def expected(space: Space | None, trials: list[FrozenTrial]) -> Mapping[int, Set[str]]:
    """Return, by number of a trial, the parameters that it has if it was sampled completely."""
    if space is not None:
        values = {t.number: plain_params(t) for t in trials}
        return {
            number: {name for name in space.order if space.active(name, params) is not None}
            for number, params in values.items()
        }
    complete = [set(plain_params(t)) for t in trials if t.state is TrialState.COMPLETE]
    common = set.intersection(*complete) if complete else set()
    return {t.number: common for t in trials}


def carried(
    trial: FrozenTrial,
    key: Root,
    should_have: Set[str],
    new: Space,
    between: Sequence[Space] = (),
) -> FrozenTrial | Unfit:
    """Return the trial as it is stored in the new study, or the reason why it is not valid there.

    Finished trials keep their values and attributes; a running or waiting one is enqueued with its
    parameters.

    Args:
        trial: Trial to convert.
        key: Its root.
        should_have: Parameters that it has if it was sampled completely.
        new: Space of the new study.
        between: Spaces from the trial's own to the new one, which may have renamed parameters.
    """
    origin: Mapping[str, Any] = trial.system_attrs.get(ORIGIN, {})
    drawn = plain_params(trial)
    waiting = not trial.state.is_finished()
    measured = {**(_enqueued(trial) if waiting else {}), **drawn}
    names = _current_names(measured, (*between, new))
    guessed = {names.get(name, name) for name in origin.get("assumed", ())}
    measured = {names[name]: value for name, value in measured.items()}
    known = {**origin.get("removed", {}), **measured}
    _rename(known, new)
    complete = not waiting and should_have <= set(drawn)
    fitted = _fit(known, new, assume=complete)
    if isinstance(fitted, Unfit):
        return fitted
    values, assumed = fitted
    if waiting and not values:
        return Unfit("it had not begun")
    if not waiting and (broken := new.broken(values)):
        return Unfit(f"breaks the constraint {broken[0].name}")
    note: Origin = {"study": key[0], "number": key[1]}
    if defaults := [name for name in values if name in guessed or name in assumed]:
        note["assumed"] = defaults
    if removed := {n: v for n, v in known.items() if n not in values and n not in guessed}:
        note["removed"] = removed
    return _rewritten(trial, new, values, note, waiting)


def renumber_references(form: FrozenTrial, numbers: Mapping[int, int]) -> None:
    """Replace the numbers of other trials in a converted trial by those in the new study. The
    number of a trial that is not carried over is removed.

    Args:
        form: Converted trial; it is changed.
        numbers: Number in the new study, by the number in the version that the trial comes from.
    """
    record = form.user_attrs.get(RECORD)
    if isinstance(record, dict):
        named = {name: record[name] for name in _REFERENCES if isinstance(record.get(name), int)}
        now = {name: numbers[number] for name, number in named.items() if number in numbers}
        others = {name: value for name, value in record.items() if name not in named}
        form.user_attrs[RECORD] = others | now


def assumed_of(trial: FrozenTrial) -> list[str]:
    """Return the parameters that are newer than the trial, which took their defaults."""
    return list(trial.system_attrs.get(ORIGIN, {}).get("assumed", ()))


def _enqueued(trial: FrozenTrial) -> Flat:
    return {plain_name(n): v for n, v in trial.system_attrs.get(_ENQUEUED, {}).items()}


def _current_names(names: Iterable[str], spaces: Sequence[Space]) -> dict[str, str]:
    """Return the names of parameters in the last space, by their names in the first. Each space
    may rename them; a renaming that was undone has no effect."""
    new = spaces[-1]
    called = {name: [name] for name in names}
    for space in spaces:
        for name, parameter in space.parameters.items():
            for others in called.values():
                if others[-1] in parameter.was and others[-1] not in space.parameters:
                    others.append(name)
    result = {}
    for name, others in called.items():
        still_there = [other for other in others if other in new.parameters]
        result[name] = still_there[-1] if still_there else others[-1]
    return result


def _rename(known: Flat, new: Space) -> None:
    """Rename values of removed parameters that are in the new space under another name."""
    for name, parameter in new.parameters.items():
        for before in parameter.was:
            if name not in known and before in known and before not in new.parameters:
                known[name] = known.pop(before)


def _fit(known: Flat, new: Space, assume: bool) -> tuple[Flat, list[str]] | Unfit:
    """Return the known values that are active in the new space, and the parameters that took their
    defaults. Without `assume`, unknown values are left out."""
    values: Flat = {}
    assumed: list[str] = []
    for name in new.order:
        position = new.active(name, values)
        if position is None:
            continue
        branch = new.parameters[name].branches[position]
        if name in known:
            if not branch.contains(known[name]):
                return Unfit(_no_longer(name, known[name], branch))
            values[name] = _canonical(branch, known[name])
        elif assume and branch.has_default:
            values[name] = branch.default
            assumed.append(name)
        elif assume:
            return Unfit(f"{name} is new and has no default")
    return values, assumed


def _no_longer(name: str, value: ParamValue, branch: Branch) -> str:
    if isinstance(branch, Categorical):
        return f"{name} = {value!r} is no longer possible"
    return f"{name} is not {branch}"  # without the value, so that reasons can be counted


def _canonical(branch: Branch, value: ParamValue) -> ParamValue:
    """Return the value in the type of the domain: 16, not 16.0."""
    if isinstance(branch, Categorical):
        return next(choice for choice in branch.choices if same_value(choice, value))
    number = branch.distribution.to_internal_repr(value)
    return number if isinstance(branch, Float) else int(number)


def _rewritten(
    trial: FrozenTrial, new: Space, values: Flat, origin: Origin, waiting: bool
) -> FrozenTrial:
    system = {k: v for k, v in trial.system_attrs.items() if not k.startswith(_LOCAL)}
    system[ORIGIN] = origin
    params = {} if waiting else new.stored(values)
    if waiting:
        system[_ENQUEUED] = values
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=TrialState.WAITING if waiting else trial.state,
        value=None,
        values=None if waiting else trial.values,
        datetime_start=None if waiting else trial.datetime_start,
        datetime_complete=None if waiting else trial.datetime_complete,
        params=params,
        distributions={name: new.distributions[name] for name in params},
        user_attrs=dict(trial.user_attrs),
        system_attrs=system,
        intermediate_values={} if waiting else dict(trial.intermediate_values),
    )
