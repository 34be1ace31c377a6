"""Study of a search with a Trainer, and its run folder."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.study import Study, StudyDirection

from supermax.errors import EnvironmentFault, UserError
from supermax.space import Space
from supermax.studies import make_storage, open_study

NAME = "hyperparameter_search"
"""Name of a study, unless the user gives one."""


def open_search(
    space: Space | None,
    direction: str | Sequence[str],
    output_dir: str,
    options: Mapping[str, Any],
) -> tuple[Study, Path | None]:
    """Return the study of a search, new or resumed, and its run folder; None: that of the study.

    Without `storage` the study is in `run_dir`. Without both it is in memory, and its files are in
    a new folder in `output_dir`.
    """
    storage, run_dir = options.get("storage"), options.get("run_dir")
    place = Path(run_dir).absolute() if run_dir is not None else None
    directions = _directions(direction)
    if storage is None and place is not None:
        _make(place, exist_ok=True)
        storage, place = f"sqlite:///{place / 'study.db'}", None
    elif storage is None:
        place = _new_folder(Path(output_dir).absolute())
    study = _open(space, storage, directions, options)
    _check_directions(study, directions)
    return study, place


def _open(space: Space | None, storage: Any, directions: list[str], options: Any) -> Study:
    own = {name: options[name] for name in ("sampler", "pruner") if name in options}
    name = options.get("study_name")
    if space is not None:
        if not options.get("load_if_exists", True):
            raise UserError(
                "load_if_exists=False has no effect with a Space: its study is continued, or a "
                "next version of it opened. Leave it out, or pass another study_name."
            )
        return open_study(space, storage=storage, name=name, directions=directions, **own)
    return optuna.create_study(
        storage=make_storage(storage) if storage is not None else None,
        study_name=name or NAME,
        directions=directions,  # type: ignore[arg-type]
        load_if_exists=options.get("load_if_exists", True),
        **own,
    )


def _check_directions(study: Study, wanted: list[str]) -> None:
    there = [direction.name.lower() for direction in study.directions]
    if there != wanted:
        raise UserError(
            f"The study '{study.study_name}' is there with direction {', '.join(there)}, and this "
            f"call says {', '.join(wanted)}. Pass the same direction, or another study_name."
        )


def _directions(given: object) -> list[str]:
    """Return the directions of the objectives, `minimize` or `maximize`. Raises UserError."""
    single = isinstance(given, str | StudyDirection)
    several = given if isinstance(given, Sequence) else ()
    names = [
        each.name.lower() if isinstance(each, StudyDirection) else each
        for each in ([given] if single else several)
    ]
    if not names or any(name not in ("minimize", "maximize") for name in names):
        raise UserError(
            f"direction must be 'minimize' or 'maximize', or a list of these for several "
            f"objectives, but is {given!r:.80}."
        )
    return list(map(str, names))


def _make(folder: Path, *, exist_ok: bool = False) -> None:
    """Create a folder. Raises EnvironmentFault if that is impossible, and FileExistsError for
    one that exists and must not."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        if isinstance(error, FileExistsError) and not exist_ok:
            raise
        raise EnvironmentFault(
            f"The folder {folder} cannot be created ({error.strerror}). Pass another run_dir."
        ) from None


def _new_folder(output_dir: Path) -> Path:
    """Return a folder that no other search has used."""
    now = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder = output_dir / f"{NAME}-{now}"
    number = 1
    while True:
        try:
            _make(folder)
            return folder
        except FileExistsError:
            number += 1
            folder = output_dir / f"{NAME}-{now}-{number}"
