"""What many commands begin with: a storage, a study, a trial; and JSON where a script reads."""

from __future__ import annotations

import json
from typing import Annotated, Any

import optuna
import typer
from optuna.storages import BaseStorage
from optuna.study import Study

from supermax.cli.completing import studies
from supermax.errors import UserError
from supermax.space.versions import base_name, find_versions, version_of
from supermax.study import existing, without_password
from supermax.words import ended, finite, nearest, one_line

STUDY = "STUDY"
Storage = Annotated[
    str,
    typer.Option(
        help="Where the studies are: a file or an Optuna URL.", envvar="SUPERMAX_STORAGE"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar=STUDY,
        help="The study's name; without @N, its newest version.",
        autocompletion=studies,
    ),
]
Which = Annotated[
    str | None,
    typer.Argument(
        metavar=STUDY,
        help="The study's name; not needed where the storage holds one alone.",
        autocompletion=studies,
    ),
]


def find_study(storage: BaseStorage, name: str) -> Study:
    """The study's newest version; name@1 is the first one."""
    names = [summary.study_name for summary in storage.get_all_studies()]
    if versions := find_versions(storage, name):
        return versions[-1]
    for known in (name, base_name(name) if version_of(name) == 1 else name):
        if known in names:
            return optuna.load_study(study_name=known, storage=storage)
    raise UserError(ended(f"There is no study '{name}'{nearest(name, names)}"))


def the_study(storage: str, name: str | None) -> Study:
    """The study of that name; without one, the only study that there is."""
    backend = existing(storage)
    if name is not None:
        return find_study(backend, name)
    names = dict.fromkeys(base_name(s.study_name) for s in backend.get_all_studies())
    if len(names) == 1:
        return find_study(backend, next(iter(names)))
    shown = without_password(storage)
    if not names:
        raise UserError(f"There is no study in {shown} yet.")
    known = ", ".join(map(one_line, names))
    raise UserError(f"There are several studies in {shown}: {known}. Name one with --study.")


def front_size(study: Study) -> int | None:
    """How many trials are on the front; None where there is one objective."""
    return None if len(study.directions) == 1 else len(study.best_trials)


def print_json(data: Any) -> None:
    print(as_json_text(data))


def as_json_text(data: Any) -> str:
    return json.dumps(finite(data), indent=1, ensure_ascii=False, default=str)
