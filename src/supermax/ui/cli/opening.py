"""Storage and study options shared by the commands, and JSON output for scripts."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from optuna.study import Study

from supermax._util.attributes import is_race
from supermax._util.text import finite, one_line
from supermax.errors import UserError
from supermax.space.migration.versions import base_name, find_study
from supermax.studies import existing, without_password
from supermax.ui.cli.completing import studies

STUDY = "STUDY"
Storage = Annotated[
    str,
    typer.Option(
        help="Storage of the studies: a file or an Optuna URL.", envvar="SUPERMAX_STORAGE"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar=STUDY,
        help="Name of the study; without @N, its newest version.",
        autocompletion=studies,
    ),
]
Which = Annotated[
    str | None,
    typer.Argument(
        metavar=STUDY,
        help="Name of the study; may be omitted if the storage has only one.",
        autocompletion=studies,
    ),
]


def the_study(storage: str, name: str | None) -> Study:
    """Return the study of that name; without a name, the only study of the storage.

    Raises UserError where there is none, or several and no name.
    """
    backend = existing(storage)
    if name is not None:
        try:
            return find_study(backend, name)
        except UserError as error:
            shown = without_password(storage)
            raise UserError(f"{error} The storage is {shown}: --storage names another.") from None
    found = [s.study_name for s in backend.get_all_studies()]
    names = dict.fromkeys(base_name(name) for name in found if not is_race(name))
    if len(names) == 1:
        return find_study(backend, next(iter(names)))
    shown = without_password(storage)
    if not names:
        raise UserError(f"There is no study in {shown} yet.")
    known = ", ".join(map(one_line, names))
    raise UserError(f"There are several studies in {shown}: {known}. Name one with --study.")


def front_size(study: Study) -> int | None:
    """Return the number of trials on the Pareto front; None for a single objective."""
    return None if len(study.directions) == 1 else len(study.best_trials)


def print_json(data: object) -> None:
    print(as_json_text(data))


def as_json_text(data: object) -> str:
    """Return indented JSON, with numbers that are not finite as text."""
    return json.dumps(finite(data), indent=1, ensure_ascii=False, default=str)
