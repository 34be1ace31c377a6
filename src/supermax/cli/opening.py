"""The storage and the study that a command is about."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import BaseStorage
from optuna.study import Study

from supermax.errors import UserError
from supermax.space.versions import base_name, find_versions, version_of
from supermax.study import connect
from supermax.words import ended, nearest


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
        return _load(storage, versions[-1].study_name)
    for known in (name, base_name(name) if version_of(name) == 1 else name):
        if known in names:
            return _load(storage, known)
    raise UserError(ended(f"There is no study '{name}'{nearest(name, names)}"))


def _load(storage: BaseStorage, name: str) -> Study:
    return optuna.load_study(study_name=name, storage=storage)
