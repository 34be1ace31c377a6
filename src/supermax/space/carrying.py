"""What becomes of a trial in another version of its space: pure.

FrozenTrial, names it should have, new Space ──carried()──▶ FrozenTrial for the new study
                                                   └──────▶ Unfit: the reason, in words
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from supermax.naming import CLAIM, CREATION, DRAWN, ORIGIN, plain_name, plain_params
from supermax.space.domains import Branch, Categorical
from supermax.space.expression import same
from supermax.space.model import Flat, Space

_QUEUED = "fixed_params"
_LOCAL = (CLAIM, CREATION, DRAWN, "tpe:relative_params")  # attributes that mean nothing elsewhere


@dataclass(frozen=True)
class Unfit:
    """A trial that has no place in the new space."""

    reason: str


Root = tuple[str, int]
"""Where a trial was run first: the study's name and the number there."""


def root(trial: FrozenTrial, study_name: str) -> Root:
    """Where a trial was run first, however often it was carried over since."""
    origin = trial.system_attrs.get(ORIGIN)
    return (origin["study"], origin["number"]) if origin else (study_name, trial.number)


def roots(trials: Iterable[FrozenTrial], study_name: str) -> list[Root]:
    """The trials' roots, each once: a copy that another program made of a carried trial, its
    attributes included, is a trial of its own."""
    seen: set[Root] = set()
    result = []
    for trial in trials:
        key = root(trial, study_name)
        result.append((study_name, trial.number) if key in seen else key)
        seen.add(result[-1])
    return result


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
    trial: FrozenTrial,
    key: Root,
    should_have: Set[str],
    new: Space,
    between: Sequence[Space] = (),
) -> FrozenTrial | Unfit:
    """The trial as the new study shall hold it. Finished trials keep all they have; one that
    was running or waiting is queued with its values. `between` are the spaces from the trial's
    own to the new one, which may have given its parameters other names."""
    origin = trial.system_attrs.get(ORIGIN, {})
    drawn = plain_params(trial)
    waiting = not trial.state.is_finished()
    measured = {**(_queued(trial) if waiting else {}), **drawn}
    names = _names_now(measured, (*between, new))
    guessed = {names.get(name, name) for name in origin.get("assumed", ())}
    measured = {names[name]: value for name, value in measured.items()}
    known = {**origin.get("removed", {}), **measured}
    _rename(known, new)
    whole = not waiting and should_have <= set(drawn)
    fitted = _fit(known, new, assume=whole)
    if isinstance(fitted, Unfit):
        return fitted
    values, assumed = fitted
    if waiting and not values:
        return Unfit("it had not begun")
    if not waiting and (broken := new.broken(values)):
        return Unfit(f"breaks the constraint {broken[0].name}")
    note = {
        "study": key[0],
        "number": key[1],
        "assumed": [name for name in values if name in guessed or name in assumed],
        "removed": {n: v for n, v in known.items() if n not in values and n not in guessed},
    }
    kept = {key: value for key, value in note.items() if value not in ([], {})}
    return _rewritten(trial, new, values, kept, waiting)


def assumed_of(trial: FrozenTrial) -> list[str]:
    """The parameters whose values are defaults, since the trial is from before they existed."""
    return list(trial.system_attrs.get(ORIGIN, {}).get("assumed", ()))


def _queued(trial: FrozenTrial) -> Flat:
    return {plain_name(n): v for n, v in trial.system_attrs.get(_QUEUED, {}).items()}


def _names_now(names: Iterable[str], spaces: Sequence[Space]) -> dict[str, str]:
    """What the last of the spaces calls the parameters: each may have given them other names. A
    name that was given and taken back is the old one again."""
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
    """Give values that were put aside the names that parameters have now."""
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
                return Unfit(_no_longer(name, known[name], branch))
            values[name] = canonical(branch, known[name])
        elif assume and branch.has_default:
            values[name] = branch.default
            assumed.append(name)
        elif assume:
            return Unfit(f"{name} is new and has no default")
    return values, assumed


def _no_longer(name: str, value: Any, branch: Branch) -> str:
    if isinstance(branch, Categorical):
        return f"{name} = {value!r} is no longer possible"
    return f"{name} is not {branch}"  # without the value, so that reasons can be counted


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
    params = {} if waiting else new.stored(values)
    if waiting:
        system[_QUEUED] = values
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
