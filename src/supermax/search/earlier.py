"""Earlier studies from which a search begins: their best configurations are its first trials.

warm_start ──find_earlier()──▶ Earlier ──configurations()──▶ plan
                                      └─begin_with()──▶ enqueued once, after the defaults

An earlier study is only read. The study of the search notes from which ones it has begun, so that
a restart neither reads them again nor enqueues anything.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from supermax._util.attributes import EXPERIMENT, STORAGE, WARM_START, is_race
from supermax._util.text import counted, is_url
from supermax.engine.storage import servers
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.servers import NothingStored
from supermax.errors import EnvironmentFault, UserError
from supermax.search.settings import Settings
from supermax.search.settings.places import parted, unreadable, without_storage
from supermax.space import Space, find_versions
from supermax.space.migration.exclusive import exclusive
from supermax.space.migration.versions import base_name, find_study
from supermax.space.model import Flat
from supermax.space.seeds import best_configurations, enqueue_chosen
from supermax.studies import CannotOpen, existing, file_of, opening_lock, without_password

TOP = 3
"""Configurations that are taken from all earlier studies, but at least one from each."""
APART = 0.3
"""Difference of a parameter, as a share of its range, from which two configurations of a study are
distinct. The best trials of a study are often nearly the same."""
_ELSEWHERE = (
    f"Name a study elsewhere as STORAGE#STUDY, where STORAGE is a file, a folder with a "
    f"{STORAGE}, or a URL."
)
_ASK = "Ask its owner for read access, or name another study."


@dataclass(frozen=True)
class Earlier:
    """Study whose best configurations begin a search."""

    name: str
    """The study as the settings name it, without a password."""
    study: Study
    most: int = TOP
    """Configurations to take."""

    def configurations(self, space: Space) -> tuple[dict[int, Flat], Counter[str]]:
        """Return the best configurations that are valid in a space and not its defaults, which run
        anyway, by the number of their trials; and the number of better trials that are not, by
        reason."""
        return best_configurations(self.study, space, self.most, APART, space.defaults())

    def planned(self, space: Space, objectives: Sequence[str]) -> list[str]:
        """Return the lines of the plan: how many configurations the search takes, and why it takes
        no more."""
        chosen, left = self.configurations(space)
        start = counted(len(chosen), "configuration") if chosen else "no configuration"
        lines = [f"begins with {start} of {self.name}"]
        if len(self.study.directions) > 1:
            lines[0] += ", first those of its Pareto front"
        if chosen and (ranked := _objectives_of(self.study)) and ranked[0] != objectives[0]:
            lines[0] += f", the best by {ranked[0]}: this search optimizes {objectives[0]}"
        if left and len(chosen) < self.most:
            reasons = "; ".join(f"{reason} ({n})" for reason, n in left.most_common(3))
            lines.append(f"trials of {self.name} that are left out: {reasons}")
        return lines


def planned(
    earlier: Sequence[Earlier], space: Space, objectives: Sequence[str], before: int, trials: int
) -> list[str]:
    """Return the lines of the plan on all earlier studies. `before`: number of trials of the
    search that come before their configurations; `trials`: number in all."""
    lines = [line for each in earlier for line in each.planned(space, objectives)]
    taken = sum(len(each.configurations(space)[0]) for each in earlier)
    if taken > (places := max(0, trials - before)):
        some = f"only {places}" if places else "none"
        lines.append(
            f"{some} of them among the {counted(trials, 'trial')}, after {before} that "
            f"{'comes' if before == 1 else 'come'} first: --trials {before + taken} runs all"
        )
    return lines


def find_earlier(settings: Settings) -> list[Earlier]:
    """Return the earlier studies from which the search has not begun yet. Raises UserError."""
    if not settings.warm_start:
        return []
    own = _own_storage(settings)
    begun = set[str]()
    for version in find_versions(own, settings.study) if own is not None else []:
        noted = version.user_attrs.get(WARM_START, {})
        begun |= {name for name, choice in noted.items() if isinstance(choice, list)}
    found: list[Earlier] = []
    names = {without_password(t) if is_url(t) else t: t for t in settings.warm_start}
    for position, (name, text) in enumerate(names.items()):
        if name in begun:
            continue
        try:
            study = _found(text, name, own, settings)
            _check(study, own, settings)
            _check_new(study, found)
        except UserError as error:
            raise UserError(f"warm_start {name}: {error}") from None
        except (EnvironmentFault, StorageInternalError, SQLAlchemyError) as error:
            what = f"It cannot be read: {servers.why(error)}."
            if isinstance(error, EnvironmentFault):
                what = error.what if isinstance(error, CannotOpen) else str(error)
            raise EnvironmentFault(f"warm_start {name}: {what} {_remedy(text)}") from None
        found.append(Earlier(name, study, quota(position, len(names))))
    return found


def _check_new(study: Study, found: Sequence[Earlier]) -> None:
    """Raise UserError for a study that is named twice, as STUDY and as STORAGE#STUDY."""
    place = find_location(study).address
    for each in found:
        is_same = each.study.study_name == study.study_name
        if is_same and find_location(each.study).address == place:
            raise UserError(f"It is the same study as {each.name}. Name it once.")


def quota(position: int, studies: int) -> int:
    """Return how many configurations come from the study at this position: TOP in total, but at
    least one from each. If they cannot be divided evenly, the first studies give one more."""
    return max(1, math.ceil((TOP - position) / studies))


def begin_with(study: Study, space: Space, earlier: Sequence[Earlier]) -> None:
    """Enqueue the best configurations of earlier studies, once, however often it is called."""
    for each in earlier:
        storage, name = study._storage, study.study_name
        with opening_lock(storage, name), exclusive(storage, name):  # of files, and of servers
            begun = study.user_attrs.get(WARM_START, {})
            if isinstance(noted := begun.get(each.name), list):
                continue
            if noted is None:
                # After a kill, the earlier study may have better trials: the choice stays.
                noted = {str(n): values for n, values in each.configurations(space)[0].items()}
                study.set_user_attr(WARM_START, {**begun, each.name: noted})
            chosen = {int(number): values for number, values in noted.items()}
            enqueue_chosen(study, each.study.study_name, chosen)
            study.set_user_attr(WARM_START, {**begun, each.name: list(chosen)})


def _own_storage(settings: Settings) -> BaseStorage | None:
    """Return the storage of the search; None: it does not exist yet."""
    try:
        return existing(settings.storage_address)
    except NothingStored:
        return None


def _found(text: str, name: str, own: BaseStorage | None, settings: Settings) -> Study:
    """Return the study of that name in the search's storage, or the one in another storage.

    `name`: the text without a password."""
    place, study = parted(text)
    if place is None or (own is not None and find_versions(own, text)):
        try:
            if own is not None:
                return find_study(own, text)
            where = without_password(settings.storage_address)
            raise UserError(f"There is no study '{name}': {where} does not exist yet.")
        except UserError as error:
            if (denied := unreadable(text)) is not None:
                raise UserError(f"This user may not read {denied}. {_ASK}") from None
            if (missing := without_storage(text)) is not None:
                raise UserError(f"{missing}, and no study has that name. {_ELSEWHERE}") from None
            raise UserError(f"{error} {_ELSEWHERE}") from None
    try:
        storage = existing(place)
    except NothingStored:
        raise UserError("It holds no studies. Name the file or URL of their storage.") from None
    return find_study(storage, study) if study else _only(storage, name, settings.agent)


def _remedy(text: str) -> str:
    """Return the advice for a storage that cannot be opened. SQLite writes beside a database even
    where it only reads it."""
    if unreadable(text) is not None:
        return f"This user may not read it. {_ASK}"
    place, _ = parted(text)
    file = file_of(place) if place is not None else None
    if file is not None and not os.access(file.absolute().parent, os.W_OK):
        return f"Copy {file.name} to a folder that you can write, and name the copy."
    return "Name another study, or leave it out."


def _only(storage: BaseStorage, where: str, agent: str) -> Study:
    """Return the only study of an agent in a storage."""
    stored = (each.study_name for each in storage.get_all_studies())
    names = sorted({base_name(name) for name in stored if not is_race(name)})
    found = [study for name in names if _agent_of(study := find_study(storage, name)) == agent]
    if not found:
        raise UserError(f"It has no study of the agent {agent}. Name another storage.")
    if len(found) > 1:
        own = [base_name(study.study_name) for study in found]
        raise UserError(f"It has several studies: {', '.join(own)}. Name one: {where}#{own[0]}.")
    return found[0]


def _check(found: Study, own: BaseStorage | None, settings: Settings) -> None:
    """Raise UserError for a study from which this search cannot begin."""
    if own is not None and base_name(found.study_name) == settings.study:
        here = find_versions(own, settings.study)
        if find_location(found).address in [find_location(each).address for each in here]:
            raise UserError(
                "It is the study of this search, which goes on with its own trials anyway. Leave "
                "warm_start out, or begin another study with --study NAME."
            )
    if (agent := _agent_of(found)) != settings.agent:
        of = f"of the agent {agent}" if agent else "of no agent"
        raise UserError(
            f"It is a study {of}, and this is a search of {settings.agent}. Name a study of "
            f"{settings.agent}."
        )
    if not found.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        raise UserError("It has no complete trial yet. Wait for its first one, or name another.")


def _experiment_of(study: Study) -> dict[str, object]:
    """Return the experiment of a study. A version that was migrated has it in an earlier one."""
    for version in [study, *reversed(find_versions(study._storage, base_name(study.study_name)))]:
        if isinstance(found := version.user_attrs.get(EXPERIMENT), dict):
            return found
    return {}


def _agent_of(study: Study) -> str | None:
    agent = _experiment_of(study).get("agent")
    return agent if isinstance(agent, str) else None


def _objectives_of(study: Study) -> list[str]:
    names = _experiment_of(study).get("objectives")
    return [str(name) for name in names] if isinstance(names, list) else []
