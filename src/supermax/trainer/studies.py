"""Study of a search with a Trainer, and its run folder."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.study import Study, StudyDirection

from supermax.errors import UserError
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
    if storage is None and place is not None:
        place.mkdir(parents=True, exist_ok=True)
        storage, place = f"sqlite:///{place / 'study.db'}", None
    elif storage is None:
        place = _new_folder(Path(output_dir).absolute())
    directions = [direction] if isinstance(direction, str) else list(direction)
    study = _open(space, storage, directions, options)
    _check_directions(study, directions)
    return study, place


def _open(space: Space | None, storage: Any, directions: list[str], options: Any) -> Study:
    own = {name: options[name] for name in ("sampler", "pruner") if name in options}
    name = options.get("study_name")
    if space is not None:
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
    if there != [_name(direction) for direction in wanted]:
        raise UserError(
            f"The study '{study.study_name}' is there with direction {', '.join(there)}, and this "
            f"call says {', '.join(map(_name, wanted))}. Pass the same direction, or another "
            f"study_name."
        )


def _name(direction: object) -> str:
    return (
        direction.name.lower() if isinstance(direction, StudyDirection) else str(direction).lower()
    )


def _new_folder(output_dir: Path) -> Path:
    """Return a folder that no other search has used."""
    now = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder = output_dir / f"{NAME}-{now}"
    number = 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = output_dir / f"{NAME}-{now}-{number}"
