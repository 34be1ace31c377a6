"""Source of the trials: a study and its run folder, opened by another process and only read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax.engine.run.session import IDENTITY
from supermax.engine.storage.locations import Location, find_location
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.rdb import uncached
from supermax.engine.storage.run_folder import StudyFolder, new_identity
from supermax.errors import EnvironmentFault, UserError
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.tracking.content import About
from supermax.results.tracking.names import digest
from supermax.studies import JOURNAL, connect


@dataclass(frozen=True)
class StudySource:
    """Address of a study and its run folder. `storage` is a URL for `supermax.studies`; it may
    contain a password."""

    storage: str = field(repr=False)
    study: str
    run_dir: str

    def data(self) -> dict[str, str]:
        return asdict(self)


def source_of(study: Study, run_dir: Path | None = None) -> StudySource:
    """Return the address of a study for another process. Raises UserError if it has none."""
    home = find_location(_bare(study))
    if home.volatile:
        raise UserError(
            f"The study '{study.study_name}' is in memory, where the tracker cannot read it. To "
            f"track it, store it in a file: storage='sqlite:///study.db'."
        )
    folder = run_dir or home.run_dir
    return StudySource(
        _address(_bare(study)._storage, home), study.study_name, str(folder.absolute())
    )


def _bare(study: Study) -> Study:
    """Return the study with its original storage, which a run wraps."""
    if not isinstance(study._storage, PatientStorage):
        return study
    return optuna.load_study(study_name=study.study_name, storage=study._storage.inner)


def _address(storage: BaseStorage, home: Location) -> str:
    inner = uncached(storage)
    if isinstance(inner, JournalStorage) and isinstance(inner._backend, JournalFileBackend):
        return f"{JOURNAL}{home.file}"
    if isinstance(inner, RDBStorage):
        if home.file is not None:
            return f"sqlite:///{home.file}"
        return str(inner.engine.url.render_as_string(hide_password=False))
    kind = type(getattr(inner, "_backend", inner)).__name__
    raise UserError(
        f"Studies in a {kind} cannot be tracked: the tracker process cannot open it. Use a "
        f"database or a journal file."
    )


def open_tracked_study(source: StudySource) -> Study:
    """Return the study for reading. Raises EnvironmentFault if its file is gone, instead of
    creating a new one."""
    for kind in (JOURNAL, "sqlite:///"):
        path = source.storage.partition(kind)[2]
        if path and not Path(path).is_file():
            raise EnvironmentFault(f"There is no file {path} any more.")
    try:
        return optuna.load_study(study_name=source.study, storage=connect(source.storage))
    except KeyError:
        raise UserError(f"The study '{source.study}' is not in its storage any more.") from None


def describe_study(study: Study) -> About:
    record = StudyRecord(study, Path(), [])
    return About(identity_of(study), study.study_name, record.objectives, record.experiment)


def identity_of(study: Study) -> str:
    """Return the identity of a study; for one without a run yet, a digest of address and name."""
    attributes = study._storage.get_study_system_attrs(study._study_id)
    home = find_location(_bare(study))
    return str(attributes.get(IDENTITY) or digest(home.address, study.study_name))


def ensure_identity(study: Study) -> None:
    """Give the study an identity, as a run does first of all, so that its trials have the same
    keys before and after."""
    if IDENTITY not in study._storage.get_study_system_attrs(study._study_id):
        study._storage.set_study_system_attr(study._study_id, IDENTITY, new_identity())


def records(trials: Iterable[FrozenTrial], run_dir: str) -> list[TrialRecord]:
    folder = StudyFolder(Path(run_dir))
    return [TrialRecord(trial, folder.trial(trial.number)) for trial in trials]
