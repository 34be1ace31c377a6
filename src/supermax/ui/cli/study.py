"""`supermax study`: list, show, compare, migrate, retry and delete studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict, cast

import optuna
import typer
from optuna.study import Study
from optuna.trial import TrialState
from rich.table import Table

from supermax._util.attributes import FROM, ORIGIN, STORAGE, ParamValue, plain_params, raced_study
from supermax._util.text import counted, ended, nearest, printable
from supermax.engine.ranking import best_of
from supermax.engine.run.requeue import retry as queue_again
from supermax.engine.storage.locations import find_location
from supermax.errors import UserError
from supermax.results.race import Contestant, race_of
from supermax.space import Space, changes, load, space_of
from supermax.space.migration.carry import root
from supermax.space.migration.versions import (
    ON_CHANGE,
    base_name,
    find_study,
    find_versions,
    version_of,
)
from supermax.studies import (
    all_studies,
    existing,
    open_locked,
    refuse_while_running,
    without_password,
)
from supermax.ui.cli.completing import studies
from supermax.ui.cli.opening import (
    STUDY,
    AsJson,
    Name,
    Storage,
    front_size,
    print_json,
)
from supermax.ui.cli.printing import console, front_text, literal

app = typer.Typer(help="List, show, compare, migrate, retry and delete studies.")
app.info.no_args_is_help = True


@app.command("list")
def list_studies(storage: Storage = STORAGE, as_json: AsJson = False) -> None:
    """List the studies of a storage with their versions.

    \b
    Example:
      supermax study list --storage study.db
    """
    rows = [_facts(study) for study in all_studies(existing(storage))]
    rows.sort(key=lambda row: (base_name(row["name"]), row["version"]))
    if as_json:
        keys = ("name", "version", "finished", "best", "front", "space")
        print_json([{key: _json(row)[key] for key in keys} for row in rows])
        return
    if not rows:
        print(f"No study in {without_password(storage)}.")
        return
    table = Table("study", "finished", "best value", "space")
    for row in rows:
        best = _value_text(row["best"]) if row["best"] else front_text(row["front"])
        space = row["space"]
        parameters = counted(len(space["parameters"]), "parameter") if space else "not stored"
        table.add_row(literal(row["name"]), str(row["finished"]), best, parameters)
    console().print(table)


@app.command()
def show(name: Name, storage: Storage = STORAGE, as_json: AsJson = False) -> None:
    """Show a study: trials by state, best trial, search space, and where trials came from.

    \b
    Example:
      supermax study show criteria
    """
    study = find_study(existing(storage), name)
    facts = _facts(study)
    if as_json:
        print_json(_json(facts))
        return
    states = ", ".join(f"{n} {state.lower()}" for state, n in facts["states"].items())
    print(f"{printable(facts['name'])}: {', '.join(facts['directions'])}; {states or 'no trials'}")
    if facts["versions"] != [facts["name"]]:
        print(f"versions: {', '.join(facts['versions'])}")
    if facts["carried"]:
        origins = ", ".join(f"{n} from {study}" for study, n in facts["carried"].items())
        print(f"carried over: {origins}")
    if facts["best"]:
        best = facts["best"]
        print(f"best: {_best_text(best)}")
        for key, value in best["params"].items():
            print(printable(f"  {key} = {value}"))
    elif facts["front"]:
        print(f"best: {front_text(facts['front'])}")
    space = space_of(study)
    if space is None:
        print("It has no stored space: it was created with Optuna alone.")
        return
    parameters = counted(len(space.parameters), "parameter")
    print(f"space '{space.name}', version {space.version}, {parameters}:")
    print(_space_text(space))


@app.command()
def diff(
    name: Name,
    other: Annotated[
        str | None,
        typer.Argument(
            help="A space file, a shipped space, or another study. Default: the previous version."
        ),
    ] = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show the differences between the space of a study and another space.

    \b
    Examples:
      supermax study diff criteria space.yaml
      supermax study diff criteria@1 criteria
    """
    backend = existing(storage)
    study = find_study(backend, name)
    old = _stored_space(study)
    if other is None:
        before = [
            v
            for v in find_versions(backend, base_name(study.study_name))
            if version_of(v.study_name) < version_of(study.study_name)
        ]
        if not before:
            raise UserError(f"There is no version before '{study.study_name}'. Name a space file.")
        old, new = _stored_space(before[-1]), old
    elif any(base_name(s.study_name) == base_name(other) for s in backend.get_all_studies()):
        new = _stored_space(find_study(backend, other))
    else:
        new = load(other)
    found = changes(old, new)
    if as_json:
        print_json([{"kind": c.kind, "name": c.name, "detail": c.detail} for c in found])
        return
    for change in found:
        print(change)
    if not found:
        print("No difference.")


@app.command()
def migrate(
    name: Name,
    space: Annotated[str, typer.Argument(help="A space file, or the name of a shipped space.")],
    storage: Storage = STORAGE,
    on_change: Annotated[
        str, typer.Option(help="If the space has changed: migrate, new or stop.")
    ] = "migrate",
) -> None:
    """Create the next version of a study with a changed space, and carry its trials over.

    \b
    Example:
      supermax study migrate criteria space.yaml
    """
    if on_change not in ON_CHANGE:
        raise UserError(
            ended(f"--on-change cannot be {on_change!r}{nearest(on_change, ON_CHANGE)}")
        )
    new_space = load(space)
    backend = existing(storage)
    study = find_study(backend, name)
    changed = open_locked(
        new_space,
        backend,
        name=base_name(study.study_name),
        directions=study.directions,
        on_change=on_change,
    )
    print("\n".join(changed.lines() or [f"'{changed.study.study_name}' has this space already."]))


@app.command()
def retry(
    name: Name,
    storage: Storage = STORAGE,
    state: Annotated[
        list[str] | None, typer.Option(help="State to retry: fail or pruned. Repeatable.")
    ] = None,
) -> None:
    """Queue failed trials to run again under new numbers.

    \b
    Example:
      supermax study retry criteria --state fail
    """
    known = {"fail": TrialState.FAIL, "pruned": TrialState.PRUNED}
    wanted = [s.lower() for s in state or ["fail"]]
    if unknown := [s for s in wanted if s not in known]:
        raise UserError(ended(f"--state cannot be {unknown[0]!r}{nearest(unknown[0], known)}"))
    study = find_study(existing(storage), name)
    queued = queue_again(study, [known[s] for s in wanted])
    finished = sum(t.state.is_finished() for t in study.get_trials(deepcopy=False))
    print(
        f"{counted(len(queued), 'trial')} of '{study.study_name}' queued. A search counts "
        f"finished trials too: with --trials {finished + len(queued)} it runs them."
        if queued
        else f"'{study.study_name}' has nothing to retry."
    )


@app.command()
def delete(
    name: Annotated[
        str,
        typer.Argument(
            metavar=STUDY,
            help="Full name of the study, with @N for a version.",
            autocompletion=studies,
        ),
    ],
    storage: Storage = STORAGE,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete a study permanently, after showing what is lost and asking.

    \b
    Example:
      supermax study delete criteria@2 --yes
    """
    backend = existing(storage)
    versions = [v.study_name for v in find_versions(backend, name)]
    if len(versions) > 1:
        shown = ", ".join(f"{name}@{version_of(v)}" for v in versions)
        raise UserError(f"There are several versions of '{name}'. Name one: {shown}.")
    study = find_study(backend, name)
    race = [each for each in all_studies(backend, races=True)
            if raced_study(each.study_name) == study.study_name]  # fmt: skip
    for each in (study, *race):
        refuse_while_running(each)
    name, facts = study.study_name, _facts(study)
    print(
        f"'{name}' has {counted(facts['finished'], 'finished trial')}; {_count_unique(study)} of "
        f"them are in no other version."
    )
    if facts["best"]:
        print(f"Best: {_best_text(facts['best'])}.")
    print(f"Its run folder is kept: {find_location(study).run_dir}")
    if not yes and not typer.confirm("Delete it permanently?"):
        print("Nothing was deleted.")
        raise typer.Exit(1)
    for each in (*race, study):
        optuna.delete_study(study_name=each.study_name, storage=backend)
    print(f"'{name}' is deleted.")


def _count_unique(study: Study) -> int:
    """Return the number of finished trials that no other version has a copy of."""
    elsewhere = {
        root(trial, other.study_name)
        for other in find_versions(study._storage, base_name(study.study_name))
        if other.study_name != study.study_name
        for trial in other.get_trials(deepcopy=False)
        if trial.state.is_finished()
    }
    trials = [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]
    return sum(root(trial, study.study_name) not in elsewhere for trial in trials)


def _stored_space(study: Study) -> Space:
    space = space_of(study)
    if space is None:
        raise UserError(
            f"'{study.study_name}' has no stored space: it was created with Optuna alone. "
            f"`supermax study migrate {study.study_name} SPACE` adds one."
        )
    return space


class _BestTrial(TypedDict):
    number: int
    value: float
    params: dict[str, ParamValue]
    race: Contestant | None
    """Its part in the race, which it has won; None: there is no winner."""


_Facts = TypedDict(
    "_Facts",
    {
        "name": str,
        "version": int,
        "versions": list[str],
        "directions": list[str],
        "finished": int,
        "states": dict[str, int],
        "best": _BestTrial | None,
        "front": int | None,
        "carried": dict[str, int],
        "from": object,
        "space": dict[str, Any] | None,
    },
)


def _facts(study: Study) -> _Facts:
    """Return what commands show of a study."""
    trials = study.get_trials(deepcopy=False)
    states = Counter(trial.state.name for trial in trials)
    best: _BestTrial | None = None
    race = race_of(study)
    winner = race.best if race is not None else None
    first = best_of(trials, study.directions)
    if winner is not None:
        first = next(trial for trial in trials if trial.number == winner.trial)
    if first is not None:
        number, (value, *_) = first.number, first.values
        best = {"number": number, "value": value, "params": plain_params(first), "race": winner}
    space = space_of(study)
    origins = [t.system_attrs[ORIGIN]["study"] for t in trials if ORIGIN in t.system_attrs]
    attributes = study._storage.get_study_system_attrs(study._study_id)
    base = base_name(study.study_name)
    return {
        "name": study.study_name,
        "version": version_of(study.study_name),
        "versions": [v.study_name for v in find_versions(study._storage, base)],
        "directions": [direction.name.lower() for direction in study.directions],
        "finished": sum(trial.state.is_finished() for trial in trials),
        "states": {state.name: states[state.name] for state in TrialState if states[state.name]},
        "best": best,
        "front": front_size(study),
        "carried": dict(Counter(origins)),
        "from": attributes.get(FROM),
        "space": None if space is None else space.data(),
    }


def _json(facts: Mapping[str, object]) -> dict[str, object]:
    """Return facts as JSON, for scripts."""
    best = cast("_BestTrial | None", facts["best"])
    race = best["race"] if best is not None else None
    return {**facts, "best": {**best, "race": race.data() if race else None} if best else None}


def _best_text(best: _BestTrial) -> str:
    """Return the best trial with its value; the winner of a race with both numbers."""
    if best["race"] is not None:
        return f"trial {best['number']} won the race: {best['race']}"
    return f"trial {best['number']}, {best['value']:g}"


def _value_text(best: _BestTrial) -> str:
    """Return the best value; that of the winner of a race is its mean over fresh seeds."""
    return best["race"].mean_text if best["race"] is not None else f"{best['value']:g}"


def _space_text(space: Space) -> str:
    lines = []
    for name, parameter in space.parameters.items():
        for branch in parameter.branches:
            when = f" when {branch.when}" if branch.when else ""
            lines.append(f"  {name}: {branch}{when}")
    lines += [f"  must hold: {constraint}" for constraint in space.constraints]
    return "\n".join(lines)
