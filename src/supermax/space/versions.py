"""A study and its versions: a changed space opens the next one and carries the trials over.

    name, name@2, name@3 …     each remembers its space and the versions its trials come from

Nothing is deleted and no version but the newest is written to. Every step can be interrupted:
the next start finds a version that was not filled to its end, and fills it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from supermax.errors import UserError
from supermax.naming import FROM, SPACE
from supermax.space.carrying import Unfit, carried, expected, root
from supermax.space.diff import Change, changes
from supermax.space.model import Space
from supermax.space.sampling import sampler_for
from supermax.space.writing import Progress, add_trials
from supermax.words import listed, nearest

ON_CHANGE = ("migrate", "new", "stop")
_VERSION = re.compile(r"^(?P<base>.+?)(?:@(?P<number>[1-9]\d*))?$", re.DOTALL)


@dataclass(frozen=True)
class Opened:
    """A study as it was opened, and what opening it did."""

    study: Study
    space: Space
    changes: Sequence[Change] = ()
    came_from: Sequence[str] = ()
    carried: int = 0
    left: Counter[str] = field(default_factory=Counter)
    """Trials that do not fit, by reason; they stay in the versions they are in."""

    def lines(self) -> list[str]:
        """What a person should be told; nothing when the study just goes on."""
        name = self.study.study_name
        if not self.came_from:
            return (
                [listed(f"The space of '{name}' has changed:", map(str, self.changes))]
                if (self.changes)
                else []
            )
        lines = []
        if self.changes:
            lines.append(listed("The space has changed:", map(str, self.changes)))
        lines.append(
            f"The study is now '{name}': {self.carried} trial(s) carried over from "
            f"{', '.join(self.came_from)}."
        )
        if self.left:
            reasons = [f"{n} × {reason}" for reason, n in self.left.most_common()]
            head = f"{self.left.total()} trial(s) do not fit and stay where they are:"
            lines.append(listed(head, reasons))
        return lines


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
    """The study of this name and space: new, or going on, or the next version where the space
    has changed. Its sampler draws feasible configurations only; take them with space.sample().

    `on_change` says what a changed space does: "migrate" opens the next version with every trial
    that is valid in it, "new" opens it empty, "stop" raises UserError with what differs.
    `before_carrying` may refuse that a version's trials are carried over just now.
    """
    if on_change not in ON_CHANGE:
        raise UserError(f"on_change cannot be {on_change!r}{nearest(on_change, ON_CHANGE)}.")
    name = name or space.name
    if not base_name(name) == name:
        raise UserError(f"'{name}' names a version; the study's own name is '{base_name(name)}'.")
    knowing = sampler_for(space, sampler, seed=seed)  # finds a space without feasible points
    backend = optuna.storages.get_storage(storage)
    wanted = _directions(directions)
    versions = [v for v in find_versions(backend, name) if not _just_made(v)]
    opener = _Opener(space, backend, knowing, pruner, wanted, progress, before_carrying)
    if not versions:
        return opener.fresh(name)
    latest = versions[-1]
    _check_directions(latest, wanted)
    return opener.existing(name, latest, on_change)


def _just_made(study: Study) -> bool:
    """A version that a crash kept from knowing what it is; it is made again."""
    attributes = study._storage.get_study_system_attrs(study._study_id)
    known = SPACE in attributes or FROM in attributes or study.get_trials(deepcopy=False)
    return version_of(study.study_name) > 1 and not known


def base_name(name: str) -> str:
    match = _VERSION.match(name)
    return match["base"] if match else name


def version_of(name: str) -> int:
    match = _VERSION.match(name)
    return int(match["number"] or 1) if match else 1


def find_versions(storage: BaseStorage, name: str) -> list[Study]:
    """The versions of a study there are, oldest first."""
    names = [s.study_name for s in storage.get_all_studies()]
    found = [n for n in names if base_name(n) == name]
    return [
        optuna.load_study(study_name=n, storage=storage) for n in sorted(found, key=version_of)
    ]


def space_of(study: Study) -> Space | None:
    """The space a study remembers; None for a study of plain Optuna."""
    text = study._storage.get_study_system_attrs(study._study_id).get(SPACE)
    return None if text is None else Space.from_json(text)


def ancestors(study: Study) -> list[Study]:
    """The versions a study's trials may come from, newest first."""
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
            f"The study '{study.study_name}' has the directions {has}, not {asked}. Give it "
            f"another name, or open it as it is."
        )


@dataclass
class _Opener:
    space: Space
    storage: BaseStorage
    sampler: BaseSampler
    pruner: BasePruner | None
    directions: Sequence[StudyDirection]
    progress: Progress | None
    before_carrying: Callable[[Study], None]

    def fresh(self, name: str) -> Opened:
        study = self.make(name)
        self.remember(study)
        return Opened(study, self.space)

    def existing(self, name: str, latest: Study, on_change: str) -> Opened:
        remembered = space_of(latest)
        attributes = self.storage.get_study_system_attrs(latest._study_id)
        half_made = remembered is None and FROM in attributes
        if remembered is None and not half_made and not latest.get_trials(deepcopy=False):
            self.remember(latest)
            return Opened(self.load(latest.study_name), self.space)
        differing = [] if remembered is None else changes(remembered, self.space)
        if half_made or (remembered is not None and all(c.minor for c in differing)):
            self.remember(latest)
            return self.filled(self.load(latest.study_name), differing)
        if remembered is None:
            differing = [Change("adopted", latest.study_name, "it did not remember its space")]
        if on_change == "stop":
            raise UserError(_stopped(latest, differing))
        self.before_carrying(latest)
        study = self.make(f"{name}@{version_of(latest.study_name) + 1}")
        came_from = [latest.study_name] if on_change == "migrate" else []
        note: dict[str, Any] = {"studies": came_from, "done": not came_from}
        study._storage.set_study_system_attr(study._study_id, FROM, note)
        self.remember(study)
        return self.filled(study, differing)

    def filled(self, study: Study, differing: Sequence[Change]) -> Opened:
        """The study with the trials of the versions it comes from, if that is not done yet."""
        note = self.storage.get_study_system_attrs(study._study_id).get(FROM)
        if note is None or note["done"]:
            return Opened(study, self.space, differing)
        trials, left = self.to_carry(study)
        carried = add_trials(study, trials, self.progress)
        self.storage.set_study_system_attr(study._study_id, FROM, {**note, "done": True})
        return Opened(study, self.space, differing, note["studies"], carried, left)

    def to_carry(self, study: Study) -> tuple[list[FrozenTrial], Counter[str]]:
        """The trials of all earlier versions, each in its newest form, as far as they fit. One
        that a version in between had no place for may have one again."""
        fitting: dict[tuple[str, int], FrozenTrial] = {}
        unfit: dict[tuple[str, int], str] = {}
        for version in ancestors(study):
            trials = version.get_trials(deepcopy=False)
            should_have = expected(space_of(version), trials)
            for trial in trials:
                key = root(trial, version.study_name)
                if key in fitting:
                    continue
                result = carried(trial, version.study_name, should_have[trial.number], self.space)
                if isinstance(result, Unfit):
                    unfit.setdefault(key, result.reason)
                else:
                    fitting[key] = result
                    unfit.pop(key, None)
        order = sorted(fitting, key=lambda key: (version_of(key[0]), key[1]))
        return [fitting[key] for key in order], Counter(unfit.values())

    def make(self, name: str) -> Study:
        try:
            return optuna.create_study(
                storage=self.storage,
                study_name=name,
                sampler=self.sampler,
                pruner=self.pruner,
                directions=self.directions,
            )
        except DuplicatedStudyError:  # somebody made it just now
            return self.load(name)

    def load(self, name: str) -> Study:
        return optuna.load_study(
            study_name=name, storage=self.storage, sampler=self.sampler, pruner=self.pruner
        )

    def remember(self, study: Study) -> None:
        text = self.space.to_json()
        if self.storage.get_study_system_attrs(study._study_id).get(SPACE) != text:
            self.storage.set_study_system_attr(study._study_id, SPACE, text)


def _stopped(study: Study, differing: Sequence[Change]) -> str:
    return listed(
        f"The space differs from the one that '{study.study_name}' was made with. "
        f"on_change='migrate' opens its next version and carries the trials over; "
        f"on_change='new' opens it empty:",
        map(str, differing),
    )
