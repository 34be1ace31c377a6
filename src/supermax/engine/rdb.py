"""SQL storages: errors that pass, and operations that Optuna has no call for.

A connection can be lost after a COMMIT was sent and before its answer came. Whether it went
through is not known then, so each operation here can be repeated: done twice it changes nothing.
Optuna's own writes of parameters, reports and attributes are upserts and need no help.
"""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Any

import sqlalchemy.event
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.sqlite import is_sqlite
from supermax.naming import CLAIM, CREATION
from supermax.words import masked

_PASSING_ON_SQLITE = ("locked", "busy", "full", "disk i/o")
_READ_ONLY_SQLITE = ("readonly database", "unable to open")
_AFTERMATH = (
    sqlalchemy.exc.PendingRollbackError,
    sqlalchemy.exc.ResourceClosedError,
    sqlalchemy.exc.InternalError,  # PostgreSQL: "current transaction is aborted"
)
_LIBPQ = {
    "connect_timeout": 10,  # seconds
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
}


def unwrapped(storage: BaseStorage) -> BaseStorage:
    """Return the storage behind Optuna's cache."""
    return storage._backend if isinstance(storage, _CachedStorage) else storage


def server_of(storage: BaseStorage) -> RDBStorage | None:
    """Return the SQL storage behind `storage` if it is a server's, at the end of a connection."""
    backend = unwrapped(storage)
    return backend if isinstance(backend, RDBStorage) and not is_sqlite(backend) else None


def root_of(error: BaseException) -> BaseException:
    """Return the error that `error` came of, without Optuna's wrapping.

    When a query fails, Optuna tries another on the same session, and the error of that one (the
    session must be rolled back first) is the one that is raised.
    """
    if isinstance(error, StorageInternalError):
        error = error.__cause__ or error
    while isinstance(error, _AFTERMATH) and isinstance(
        error.__context__, sqlalchemy.exc.SQLAlchemyError
    ):
        error = error.__context__
    return error


def passing(error: BaseException, *, read_only: bool = False) -> bool:
    """Return True for what may be over in a moment: a lock, a server that restarts, a full disk.

    `read_only`: an SQLite file that cannot be written counts too.
    """
    root = root_of(error)
    if isinstance(root, sqlalchemy.exc.DBAPIError):
        if type(root.orig).__module__.startswith("sqlite3"):
            words = _PASSING_ON_SQLITE + (_READ_ONLY_SQLITE if read_only else ())
            return isinstance(root, sqlalchemy.exc.OperationalError) and any(
                word in str(root.orig).lower() for word in words
            )
        return root.connection_invalidated or isinstance(
            root, (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError)
        )
    return isinstance(
        root,
        (
            sqlalchemy.exc.PendingRollbackError,
            sqlalchemy.exc.ResourceClosedError,
            sqlalchemy.exc.DisconnectionError,
            sqlalchemy.exc.TimeoutError,
        ),
    )


def broken(error: BaseException) -> bool:
    """Return True for a database that cannot be used, False for one that refuses a value."""
    root = root_of(error)
    return isinstance(root, sqlalchemy.exc.DatabaseError) and not isinstance(
        root, (sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError)
    )


def reason(error: BaseException) -> str:
    """Return the driver's own words, without the statement, its parameters and passwords."""
    root = root_of(error)
    return masked(" ".join(str(getattr(root, "orig", root)).split()))


def notice_lost_servers(storage: RDBStorage) -> None:
    """Let the kernel find out that a PostgreSQL server is gone, in about a minute.

    Without it a connection whose other end has vanished (a machine that lost its power, a
    firewall that forgot) blocks for a quarter of an hour, or for ever. What the user has set in
    the URL or in `connect_args` stands.
    """
    engine = storage.engine
    if engine.driver not in ("psycopg", "psycopg2"):
        return
    if sqlalchemy.event.contains(engine, "do_connect", _notice_when_lost):
        return
    sqlalchemy.event.listen(engine, "do_connect", _notice_when_lost)
    engine.dispose()  # open connections were made without


def _notice_when_lost(_: Any, __: Any, ___: Any, parameters: dict[str, Any]) -> None:
    for name, value in _LIBPQ.items():
        parameters.setdefault(name, value)


def create_trial(
    storage: BaseStorage, study_id: int, template: FrozenTrial, *, repeated: bool
) -> FrozenTrial:
    """Create the trial in one transaction. `template` bears a `CREATION` mark of its own;
    `repeated`: an earlier attempt may have gone through, and then that trial is returned.

    Optuna's own call repeats a commit whose answer was lost, and leaves a second trial.
    """
    backend = server_of(storage)
    assert backend is not None
    with _create_scoped_session(backend.scoped_session) as session:
        # The lock that Optuna takes to number trials. It also waits for an earlier attempt that
        # the server has not ended yet, so the search below sees what that one wrote.
        models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
        mark = template.system_attrs[CREATION]
        made: Any = _created(session, study_id, mark) if repeated else None
        made = made or backend._get_prepared_new_trial(study_id, template, session)
        trial = copy.deepcopy(template)
        trial.number, trial._trial_id = made.number, made.trial_id
        trial.datetime_start = made.datetime_start
    if isinstance(storage, _CachedStorage):
        with storage._lock:
            storage._studies.setdefault(study_id, _StudyInfo())
            storage._add_trials_to_cache(study_id, [trial])
    return trial


def _created(session: Any, study_id: int, mark: str) -> Any:
    """Return the trial of the study that bears the mark, or None."""
    attribute = models.TrialSystemAttributeModel
    return (
        session.query(models.TrialModel)
        .join(attribute, attribute.trial_id == models.TrialModel.trial_id)
        .filter(models.TrialModel.study_id == study_id)
        .filter(attribute.key == CREATION, attribute.value_json == json.dumps(mark))
        .one_or_none()
    )


def take_trial(backend: RDBStorage, trial_id: int, claim: str) -> bool:
    """Set a WAITING trial RUNNING and claim it, in one transaction; False: another run has it.

    Raises UpdateFinishedTrialError for a trial that is finished.
    """
    with _create_scoped_session(backend.scoped_session) as session:
        waiting = session.query(models.TrialModel).filter(
            models.TrialModel.trial_id == trial_id, models.TrialModel.state == TrialState.WAITING
        )
        taken: dict[Any, Any] = {"state": TrialState.RUNNING, "datetime_start": datetime.now()}
        if waiting.update(taken, synchronize_session=False):
            backend._set_trial_attr_without_commit(
                session, models.TrialSystemAttributeModel, trial_id, CLAIM, claim
            )
            return True
        trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session)
        backend.check_trial_is_updatable(trial_id, trial.state)
        found: Any = models.TrialSystemAttributeModel.find_by_trial_and_key(trial, CLAIM, session)
        # With our claim it is ours: an earlier attempt of this very call went through.
        return found is not None and json.loads(found.value_json) == claim


def delete_steps(backend: RDBStorage, trial_id: int, first: int) -> None:
    """Delete the intermediate values of a trial from step `first` on."""
    model = models.TrialIntermediateValueModel
    with _create_scoped_session(backend.scoped_session, True) as session:
        session.query(model).filter(model.trial_id == trial_id, model.step >= first).delete()
