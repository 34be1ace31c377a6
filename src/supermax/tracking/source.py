"""The study and its run folder, as another process finds them: read, never written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax.engine.folder import StudyFolder, new_identity
from supermax.engine.home import Home, find_home
from supermax.engine.optimize import IDENTITY
from supermax.engine.rdb import unwrapped
from supermax.engine.storage import PatientStorage
from supermax.errors import EnvironmentFault, UserError
from supermax.records import StudyRecord, TrialRecord
from supermax.study import JOURNAL, connect
from supermax.tracking.content import About
from supermax.tracking.names import digest


@dataclass(frozen=True)
class Source:
    """`storage` is a URL as supermax.study takes it. It may hold a password."""

    storage: str = field(repr=False)
    study: str
    run_dir: str

    def data(self) -> dict[str, str]:
        return asdict(self)


def source_of(study: Study, run_dir: Path | None = None) -> Source:
    """How another process finds the study. Raises UserError where none can."""
    home = find_home(_bare(study))
    if home.volatile:
        raise UserError(
            f"The study '{study.study_name}' is in memory, where nothing else can read it. To "
            f"track it, keep it in a file: storage='sqlite:///study.db'."
        )
    folder = run_dir or home.run_dir
    return Source(_address(_bare(study)._storage, home), study.study_name, str(folder.absolute()))


def _bare(study: Study) -> Study:
    """The study with its own storage, also while a run has wrapped it."""
    if not isinstance(study._storage, PatientStorage):
        return study
    return optuna.load_study(study_name=study.study_name, storage=study._storage.inner)


def _address(storage: BaseStorage, home: Home) -> str:
    inner = unwrapped(storage)
    if isinstance(inner, JournalStorage) and isinstance(inner._backend, JournalFileBackend):
        return f"{JOURNAL}{home.file}"
    if isinstance(inner, RDBStorage):
        if home.file is not None:
            return f"sqlite:///{home.file}"
        return str(inner.engine.url.render_as_string(hide_password=False))
    kind = type(getattr(inner, "_backend", inner)).__name__
    raise UserError(
        f"Studies in a {kind} cannot be tracked: another process does not know how to open it. "
        f"Databases and journal files can."
    )


def opened(source: Source) -> Study:
    """The study, to be read. Looking must not make a file that is gone."""
    for kind in (JOURNAL, "sqlite:///"):
        path = source.storage.partition(kind)[2]
        if path and not Path(path).is_file():
            raise EnvironmentFault(f"There is no file {path} any more.")
    try:
        return optuna.load_study(study_name=source.study, storage=connect(source.storage))
    except KeyError:
        raise UserError(f"The study '{source.study}' is not in its storage any more.") from None


def about(study: Study) -> About:
    record = StudyRecord(study, Path(), [])
    return About(identity_of(study), study.study_name, record.objectives, record.experiment)


def identity_of(study: Study) -> str:
    """The study's own; for one that no run has opened yet, what names it."""
    attributes: dict[str, Any] = study._storage.get_study_system_attrs(study._study_id)
    home = find_home(_bare(study))
    return str(attributes.get(IDENTITY) or digest(home.address, study.study_name))


def ensure_identity(study: Study) -> None:
    """As a run does first of all: its trials shall be known by the same name before and after."""
    if IDENTITY not in study._storage.get_study_system_attrs(study._study_id):
        study._storage.set_study_system_attr(study._study_id, IDENTITY, new_identity())


def records(trials: Iterable[FrozenTrial], run_dir: str) -> list[TrialRecord]:
    folder = StudyFolder(Path(run_dir))
    return [TrialRecord(trial, folder.trial(trial.number)) for trial in trials]
