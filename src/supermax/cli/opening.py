"""What commands that look at studies share: the storage opened, the study found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import optuna
import typer
from optuna.storages import BaseStorage
from optuna.study import Study

from supermax.errors import UserError
from supermax.space.versions import base_name, find_versions, version_of
from supermax.study import connect
from supermax.words import ended, nearest

Storage = Annotated[
    str,
    typer.Option(
        help="Where the studies are: a file or an Optuna URL.", envvar="SUPERMAX_STORAGE"
    ),
]
Name = Annotated[str, typer.Argument(help="The study's name; without @N, its newest version.")]
DEFAULT = "supermax.db"


def opened(storage: str) -> BaseStorage:
    """The storage, which must be there: looking must not make one."""
    url = storage
    if "://" not in storage:
        path = Path(storage).expanduser()
        if not path.is_file():
            raise UserError(
                f"There is no file {path}. Name the studies' file or URL with --storage, or in "
                f"SUPERMAX_STORAGE."
            )
        url = f"sqlite:///{path.absolute()}"
    elif storage.startswith("sqlite:///") and not Path(storage[10:].split("?")[0]).is_file():
        raise UserError(f"There is no file {storage[10:]}.")
    return connect(url)


def find_study(storage: BaseStorage, name: str) -> Study:
    """The study's newest version; name@1 is the first one."""
    names = [summary.study_name for summary in storage.get_all_studies()]
    if versions := find_versions(storage, name):
        return load_named(storage, versions[-1].study_name)
    for known in (name, base_name(name) if version_of(name) == 1 else name):
        if known in names:
            return load_named(storage, known)
    raise UserError(ended(f"There is no study '{name}'{nearest(name, names)}"))


def load_named(storage: BaseStorage, name: str) -> Study:
    return optuna.load_study(study_name=name, storage=storage)
