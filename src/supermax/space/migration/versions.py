"""Versions of a study: a changed space opens the next one and carries the trials over.

    name, name@2, name@3 …     each stores its space and the versions that its trials come from

Nothing is deleted, and only the newest version is written to. Every step can be interrupted: the
next start finds a version that was filled in part, and completes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import FROM, ORIGIN, SPACE, is_race
from supermax._util.text import counted, ended, listed, nearest, one_line
from supermax.errors import UserError
from supermax.space.migration.bulk_write import Progress, add_trials
from supermax.space.migration.carry import (
    Root,
    Unfit,
    assumed_of,
    carried,
    expected,
    renumber_references,
    root,
    roots,
)
from supermax.space.migration.diff import Change, changes
from supermax.space.migration.exclusive import exclusive
from supermax.space.model import Space
from supermax.space.sampling import sampler_for

_STATE_RANK = {
    TrialState.COMPLETE: 0,
    TrialState.PRUNED: 1,
    TrialState.FAIL: 2,
    TrialState.WAITING: 3,
}
ON_CHANGE = ("migrate", "new", "stop")
_VERSION = re.compile(r"^(?P<base>.+?)(?:@(?P<number>[1-9]\d*))?$", re.DOTALL)


@dataclass(frozen=True)
class Opened:
    """Opened study, and what was changed to open it."""

    study: Study
    space: Space
    changes: Sequence[Change] = ()
    came_from: Counter[str] = field(default_factory=Counter)
    """Number of carried trials by the version they come from."""
    carried: int = 0
    left: Counter[str] = field(default_factory=Counter)
    """Number of trials that are not valid in the space, by reason; they stay in their versions."""
    assumed: Counter[str] = field(default_factory=Counter)
    """Number of trials in which a parameter took its default, by parameter."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of trials with a value of a removed parameter, by parameter; the values are kept in
    the trials' ORIGIN attribute."""
    migrated: bool = False

    def lines(self) -> list[str]:
        """Return messages on changes and carried trials; [] where the study is simply resumed."""
        name = self.study.study_name
        lines = []
        if self.changes:
            lines.append(listed("The space has changed:", map(str, self.changes)))
        if self.migrated:
            came = ", ".join(f"{n} from {study}" for study, n in self.came_from.items())
            lines.append(
                f"The study is now '{name}': {counted(self.carried, 'trial')} carried over"
                f"{f' ({came})' if came else ''}."
            )
        elif self.changes and not all(change.minor for change in self.changes):
            lines.append(f"The study is now '{name}', without the trials from before.")
        if self.assumed:
            lines.append(f"They are taken to have had the defaults of {_counted(self.assumed)}.")
        if self.assumed and self.dropped:
            lines.append(
                f"They also have {_counted(self.dropped)}. If that is the same parameter under "
                f"another name, declare it with `was` before the search continues."
            )
        if self.left:
            reasons = [f"{n} × {reason}" for reason, n in self.left.most_common()]
            left = counted(self.left.total(), "trial")
            lines.append(listed(f"Left in the earlier versions: {left} not valid here:", reasons))
        return lines


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{name} ({counted(n, 'trial')})" for name, n in names.items())


class OpenOptions(TypedDict, total=False):
    """Options of `open_version` that `supermax.studies.open_locked` passes on."""

    name: str | None
    sampler: BaseSampler | str | None
    pruner: BasePruner | None
    directions: Sequence[str | StudyDirection] | str
    on_change: str
    seed: int | None


def open_version(
    space: Space,
    *,
    storage: str | BaseStorage | None,
    name: str | None = None,
    sampler: BaseSampler | str | None = None,
    pruner: BasePruner | None = None,
    directions: Sequence[str | StudyDirection] | str = "minimize",
    on_change: str = "migrate",
    seed: int | None = None,
    progress: Progress | None = None,
    before_carrying: Callable[[Study], None] = lambda _: None,
) -> Opened:
    """Open the study of this name and space, new or resumed, or its next version if the space has
    changed. Its sampler samples feasible configurations only; get them with space.sample().

    `on_change` is the action for a changed space: "migrate" opens the next version with every
    trial that is valid in it, "new" opens it without trials, "stop" raises UserError with the
    differences. `before_carrying` is called with the newest version before a new one is made, and
    may raise.
    """
    if on_change not in ON_CHANGE:
        raise UserError(ended(f"on_change cannot be {on_change!r}{nearest(on_change, ON_CHANGE)}"))
    name = name or space.name
    if not base_name(name) == name:
        raise UserError(f"'{name}' names a version; the study's own name is '{base_name(name)}'.")
    if is_race(name):
        raise UserError(f"'{name}' is the name of a race. Choose a name that ends otherwise.")
    # Before a database is created: raises UserError if no point is feasible.
    space_sampler = sampler_for(space, sampler, seed=seed)
    wanted = _directions(directions)
    backend = optuna.storages.get_storage(storage)
    opener = _Opener(space, backend, space_sampler, pruner, wanted, progress, before_carrying)
    with exclusive(backend, name):
        versions = find_versions(backend, name)
        if not versions:
            return opener.fresh(name)
        latest = versions[-1]
        _check_directions(latest, wanted)
        return opener.existing(name, latest, on_change)


def _just_made(study: Study) -> bool:
    """Return True for a version that a crash left without its attributes and trials."""
    return not is_version(study) and not study.get_trials(deepcopy=False)


def is_version(study: Study) -> bool:
    attributes = study._storage.get_study_system_attrs(study._study_id)
    return SPACE in attributes or FROM in attributes


def base_name(name: str) -> str:
    match = _VERSION.match(name)
    return match["base"] if match else name


def version_of(name: str) -> int:
    match = _VERSION.match(name)
    return int(match["number"] or 1) if match else 1


def find_versions(storage: BaseStorage, name: str) -> list[Study]:
    """Return the versions of a study, oldest first. A study of plain Optuna counts only under the
    plain name."""
    names = [s.study_name for s in storage.get_all_studies()]
    found = sorted((n for n in names if base_name(n) == name), key=version_of)
    studies = [optuna.load_study(study_name=n, storage=storage) for n in found]
    return [s for s in studies if version_of(s.study_name) == 1 or is_version(s)]


def find_study(storage: BaseStorage, name: str) -> Study:
    """Return the newest version of a study, or version N where `name` ends in @N.

    Raises UserError where there is none.
    """
    names = [summary.study_name for summary in storage.get_all_studies()]
    if versions := find_versions(storage, name):
        return versions[-1]
    for known in (name, base_name(name) if version_of(name) == 1 else name):
        if known in names:
            return optuna.load_study(study_name=known, storage=storage)
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        shown = [base_name(known) for known in names if not is_race(known)]
        known = ", ".join(dict.fromkeys(map(one_line, shown))) or "none yet"
        raise UserError(f"{name} is a file. Name a study of this storage: {known}.")
    names = [known for known in names if not is_race(known)]
    raise UserError(ended(f"There is no study '{name}'{nearest(name, names)}"))


def space_of(study: Study) -> Space | None:
    """Return the space that is stored with a study; None for a study of plain Optuna."""
    text = study._storage.get_study_system_attrs(study._study_id).get(SPACE)
    return None if text is None else Space.from_json(text)


def ancestors(study: Study) -> list[Study]:
    """Return the versions that a study's trials may come from, newest first."""
    known = study._storage.get_study_system_attrs(study._study_id).get(FROM) or {}
    names = {s.study_name for s in study._storage.get_all_studies()}
    found: dict[str, Study] = {}
    for name in known.get("studies", []):
        if name in names:
            parent = optuna.load_study(study_name=name, storage=study._storage)
            found[name] = parent
            found |= {a.study_name: a for a in ancestors(parent)}
    return sorted(found.values(), key=lambda s: version_of(s.study_name), reverse=True)


def _directions(directions: Sequence[str | StudyDirection] | str) -> list[StudyDirection]:
    many = [directions] if isinstance(directions, (str, StudyDirection)) else list(directions)
    known = {"minimize": StudyDirection.MINIMIZE, "maximize": StudyDirection.MAXIMIZE}
    wrong = [d for d in many if not isinstance(d, StudyDirection) and d not in known]
    if wrong or not many:
        raise UserError(f"directions are 'minimize' or 'maximize', not {directions!r}.")
    return [d if isinstance(d, StudyDirection) else known[d] for d in many]


def _check_directions(study: Study, wanted: Sequence[StudyDirection]) -> None:
    if list(study.directions) != list(wanted):
        has, asked = (", ".join(d.name.lower() for d in ds) for ds in (study.directions, wanted))
        raise UserError(
            f"The study '{study.study_name}' has the directions {has}, not {asked}. Open it with "
            f"directions={[d.name.lower() for d in study.directions]}, or give this one another "
            f"name."
        )


@dataclass
class _Opener:
    """Steps of opening a study, with the arguments of open_version."""

    space: Space
    storage: BaseStorage
    sampler: BaseSampler
    pruner: BasePruner | None
    directions: Sequence[StudyDirection]
    progress: Progress | None
    before_carrying: Callable[[Study], None]

    def fresh(self, name: str) -> Opened:
        study = self.make(name)
        self.store_space(study)
        return Opened(study, self.space)

    def existing(self, name: str, latest: Study, on_change: str) -> Opened:
        stored = space_of(latest)
        attributes = self.storage.get_study_system_attrs(latest._study_id)
        half_made = stored is None and FROM in attributes
        if stored is None and not half_made and not latest.get_trials(deepcopy=False):
            self.store_space(latest)
            return Opened(self.load(latest.study_name), self.space)
        differing = [] if stored is None else changes(stored, self.space)
        if half_made or (stored is not None and all(c.minor for c in differing)):
            self.store_space(latest)
            return self.filled(self.load(latest.study_name), differing)
        if stored is None:
            differing = [Change("adopted", latest.study_name, "it had no space stored")]
        if on_change == "stop":
            raise UserError(_stopped(latest, differing))
        self.before_carrying(latest)
        study = self.make(f"{name}@{self.next_number(name, latest)}")
        came_from = []
        if on_change == "migrate":  # all of them, so that one may be deleted later
            came_from = [v.study_name for v in (latest, *ancestors(latest))]
        note: dict[str, list[str] | bool] = {"studies": came_from, "done": not came_from}
        study._storage.set_study_system_attr(study._study_id, FROM, note)
        self.store_space(study)
        return self.filled(study, differing)

    def filled(self, study: Study, differing: Sequence[Change]) -> Opened:
        """Carry over the trials of earlier versions into the study, unless that is done."""
        note = self.storage.get_study_system_attrs(study._study_id).get(FROM)
        if note is None or note["done"]:
            return Opened(study, self.space, differing)
        trials, sources, left = self.to_carry(study)
        add_trials(study, trials, self.progress)
        self.storage.set_study_system_attr(study._study_id, FROM, {**note, "done": True})
        assumed = Counter(name for trial in trials for name in assumed_of(trial))
        dropped = Counter(
            name for trial in trials for name in trial.system_attrs[ORIGIN].get("removed", ())
        )
        return Opened(
            study, self.space, differing, sources, len(trials), left, assumed, dropped, True
        )

    def to_carry(self, study: Study) -> tuple[list[FrozenTrial], Counter[str], Counter[str]]:
        """Return the trials of all earlier versions that are valid in the space, their number by
        version, and the number of others by reason.

        A trial may be in several versions. The newest is used, unless the trial is finished only
        in another, or takes fewer defaults there. A trial that was not valid in a version in
        between may be valid again.
        """
        forms: dict[Root, tuple[tuple[int, int], str, FrozenTrial]] = {}
        unfit: dict[Root, str] = {}
        roots_of: dict[str, dict[int, Root]] = {}
        between: list[Space] = []
        checked = 0
        versions = [(v, v.get_trials(deepcopy=False)) for v in ancestors(study)]
        total = sum(len(trials) for _, trials in versions)
        for version, trials in versions:
            space = space_of(version)
            should_have = expected(space, trials)
            keys = roots(trials, version.study_name)
            roots_of[version.study_name] = {t.number: k for t, k in zip(trials, keys, strict=True)}
            for trial, key in zip(trials, keys, strict=True):
                checked += 1
                if self.progress is not None and checked % 100 == 0:
                    self.progress("Checking trials", checked, total)
                form = carried(trial, key, should_have[trial.number], self.space, between)
                if isinstance(form, Unfit):
                    unfit.setdefault(key, form.reason)
                    continue
                rank = (_STATE_RANK[form.state], len(assumed_of(form)))
                if key not in forms or rank < forms[key][0]:
                    forms[key] = (rank, version.study_name, form)
            if space is not None:
                between.insert(0, space)
        order = sorted(forms, key=lambda key: (version_of(key[0]), key[1]))
        new = _numbers(study, order)
        numbers = {
            name: {number: new[key] for number, key in known.items() if key in new}
            for name, known in roots_of.items()
        }
        for _, name, form in forms.values():
            renumber_references(form, numbers[name])
        sources = Counter(forms[key][1] for key in order)
        left = Counter(reason for key, reason in unfit.items() if key not in forms)
        return [forms[key][2] for key in order], sources, left

    def next_number(self, name: str, latest: Study) -> int:
        """Return the next free number: a study of the user may have the name of a version."""
        taken = {s.study_name for s in self.storage.get_all_studies()}
        number = version_of(latest.study_name) + 1
        while (other := f"{name}@{number}") in taken and not _just_made(
            optuna.load_study(study_name=other, storage=self.storage)
        ):
            number += 1
        return number

    def make(self, name: str) -> Study:
        return optuna.create_study(
            storage=self.storage,
            study_name=name,
            sampler=self.sampler,
            pruner=self.pruner,
            directions=self.directions,
            load_if_exists=True,  # another process may create it at the same time
        )

    def load(self, name: str) -> Study:
        return optuna.load_study(
            study_name=name, storage=self.storage, sampler=self.sampler, pruner=self.pruner
        )

    def store_space(self, study: Study) -> None:
        text = self.space.to_json()
        if self.storage.get_study_system_attrs(study._study_id).get(SPACE) != text:
            self.storage.set_study_system_attr(study._study_id, SPACE, text)


def _numbers(study: Study, order: Sequence[Root]) -> dict[Root, int]:
    """Return the numbers that trials have in a study once they are added in this order. Some may
    be there already, from a migration that was interrupted."""
    trials = study.get_trials(deepcopy=False)
    numbers = {root(trial, study.study_name): trial.number for trial in trials}
    missing = [key for key in order if key not in numbers]
    return numbers | {key: number for number, key in enumerate(missing, len(trials))}


def _stopped(study: Study, differing: Sequence[Change]) -> str:
    return listed(
        f"The space differs from the one that '{study.study_name}' was made with. "
        f"on_change='migrate' opens its next version and carries the trials over; "
        f"on_change='new' opens it empty:",
        map(str, differing),
    )
