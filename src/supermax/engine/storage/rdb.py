"""SQL storages: transient errors, and idempotent operations that Optuna lacks.

A connection can be lost after a COMMIT was sent and before its reply came. Whether it succeeded is
unknown then, so each operation here is idempotent. Optuna's own writes of parameters, reports and
attributes are upserts and need no help.
"""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Any, cast

import sqlalchemy
import sqlalchemy.event
import sqlalchemy.exc
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, Dialect
from sqlalchemy.orm import Session

from supermax._util.attributes import CLAIM, CREATION
from supermax._util.text import masked
from supermax.engine.storage.database_errors import DatabaseProblem, is_permanent, problem_of
from supermax.engine.storage.leases import Leases, TargetReached
from supermax.engine.storage.sqlite import is_sqlite

Parameters = dict[str, tuple[float, BaseDistribution]]
"""Internal values of parameters, with their distributions."""
_TRANSIENT_SQLITE = ("locked", "busy", "full", "disk i/o")
_READ_ONLY_SQLITE = ("readonly database", "unable to open")
_FOLLOW_UP_ERRORS = (
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
_PYMYSQL = {"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60}  # seconds
_TIMEOUTS = {"psycopg": _LIBPQ, "psycopg2": _LIBPQ, "pymysql": _PYMYSQL}
"""Driver → settings by which a server that has vanished is detected in about a minute."""


def uncached(storage: BaseStorage) -> BaseStorage:
    """Return the storage behind Optuna's cache."""
    return storage._backend if isinstance(storage, _CachedStorage) else storage


def server_of(storage: BaseStorage) -> RDBStorage | None:
    """Return the SQL storage behind `storage` if it is a server; None: SQLite, or no database."""
    backend = uncached(storage)
    return backend if isinstance(backend, RDBStorage) and not is_sqlite(backend) else None


def root_of(error: BaseException) -> BaseException:
    """Return the original database error, without Optuna's wrapping.

    When a query fails, Optuna tries another on the same session. It raises the error of that one,
    which only says that the session must be rolled back first.
    """
    if isinstance(error, StorageInternalError):
        error = error.__cause__ or error
    while isinstance(error, _FOLLOW_UP_ERRORS) and isinstance(
        error.__context__, sqlalchemy.exc.SQLAlchemyError
    ):
        error = error.__context__
    return error


def is_transient(error: BaseException, *, underway: bool = False) -> bool:
    """Return whether a retry may succeed: a lock, a server that restarts, a full disk.

    `underway`: count a database that cannot be written, or rejects its user, as transient: it was
    usable when the run began.
    """
    root = root_of(error)
    if isinstance(root, sqlalchemy.exc.DBAPIError):
        if type(root.orig).__module__.startswith("sqlite3"):
            # sqlite3 raises OperationalError for all of these: only the message tells them apart.
            markers = _TRANSIENT_SQLITE + (_READ_ONLY_SQLITE if underway else ())
            return isinstance(root, sqlalchemy.exc.OperationalError) and any(
                marker in str(root.orig).lower() for marker in markers
            )
        if problem_of(root) is DatabaseProblem.READ_ONLY:
            return underway  # after a failover, until the primary is back
        return (underway or not is_permanent(root)) and (
            root.connection_invalidated
            or isinstance(root, (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError))
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


def is_broken(error: BaseException) -> bool:
    """Return whether the database is unusable, as opposed to one that rejects a value."""
    root = root_of(error)
    return isinstance(root, sqlalchemy.exc.DatabaseError) and not isinstance(
        root, (sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError)
    )


def reason(error: BaseException) -> str:
    """Return the driver's message, without the statement, its parameters and passwords."""
    root = root_of(error)
    return masked(" ".join(str(getattr(root, "orig", root)).split()))


def connection_settings(url: URL) -> dict[str, int]:
    """Return timeouts for new connections, except those that the URL sets itself."""
    known = _TIMEOUTS.get(url.get_driver_name(), {})
    return {name: value for name, value in known.items() if name not in url.query}


def enable_keepalives(storage: RDBStorage) -> None:
    """Set TCP keepalives and timeouts, so that a vanished server is detected in about a minute.

    Without them a connection to a machine without power, or through a firewall that dropped its
    state, blocks for a quarter of an hour, or for ever. Settings of the user in the URL or in
    `connect_args` take precedence.
    """
    engine = storage.engine
    if engine.driver not in _TIMEOUTS:
        return
    if sqlalchemy.event.contains(engine, "do_connect", _set_keepalives):
        return
    sqlalchemy.event.listen(engine, "do_connect", _set_keepalives)
    engine.dispose()  # existing connections lack the settings


def _set_keepalives(
    dialect: Dialect, _: object, __: object, parameters: dict[str, object]
) -> None:
    for name, value in _TIMEOUTS[dialect.driver].items():
        parameters.setdefault(name, value)


def create_trial(
    storage: BaseStorage,
    study_id: int,
    template: FrozenTrial,
    *,
    repeated: bool,
    leases: Leases | None = None,
) -> FrozenTrial:
    """Create the trial in one transaction, with its lease if it is RUNNING, and return it.

    `template` has a unique `CREATION` attribute. `repeated`: an earlier attempt may have
    succeeded; then return its trial. Optuna's own call, when retried after a lost reply, leaves a
    second one.
    """
    backend = server_of(storage)
    assert backend is not None
    with _create_scoped_session(backend.scoped_session) as session:
        # Optuna takes this row lock to number trials. It also waits for an earlier attempt that
        # the server has not finished yet, so that the query below sees its result.
        models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
        creation = template.system_attrs[CREATION]
        created: Any = _created(session, study_id, creation) if repeated else None
        if created is None:
            created = (
                _insert_running(session, study_id, template, leases)
                if template.state is TrialState.RUNNING and not template.params
                else backend._get_prepared_new_trial(study_id, template, session)
            )
        trial = copy.deepcopy(template)
        trial.number, trial._trial_id = created.number, created.trial_id
        trial.datetime_start = created.datetime_start
    if isinstance(storage, _CachedStorage):
        with storage._lock:
            storage._studies.setdefault(study_id, _StudyInfo())
            storage._add_trials_to_cache(study_id, [trial])
    return trial


def _insert_running(
    session: Session, study_id: int, template: FrozenTrial, leases: Leases | None
) -> models.TrialModel:
    """Insert a RUNNING trial and its lease, in a transaction with the lock of the study.

    All runs create their trials one after the other, so this must not take longer in a long study:
    Optuna counts the trials to number the new one; here it follows the last.
    """
    number = _next_number(session, study_id)
    if leases is not None and not leases.may_add(session, number):
        raise TargetReached
    trial: Any = models.TrialModel(study_id=study_id, number=number, state=template.state)
    trial.datetime_start = template.datetime_start
    session.add(trial)
    session.flush()  # assigns the id
    rows = [
        {"trial_id": trial.trial_id, "key": key, "value_json": json.dumps(value)}
        for key, value in template.system_attrs.items()
    ]
    session.execute(sqlalchemy.insert(models.TrialSystemAttributeModel), rows)
    if leases is not None:
        leases.add(session, trial.trial_id)
    return cast(models.TrialModel, trial)


def _next_number(session: Session, study_id: int) -> int:
    """Return the number of trials of a study, whose row is locked."""
    model = models.TrialModel
    last = sqlalchemy.select(model.number).where(model.study_id == study_id)
    number = session.execute(last.order_by(model.trial_id.desc()).limit(1)).scalar()
    return 0 if number is None else int(number) + 1


def _created(session: Session, study_id: int, creation: str) -> models.TrialModel | None:
    """Return the trial with this `CREATION` attribute; None: there is none."""
    attribute = models.TrialSystemAttributeModel
    return (
        session.query(models.TrialModel)
        .join(attribute, attribute.trial_id == models.TrialModel.trial_id)
        .filter(models.TrialModel.study_id == study_id)
        .filter(attribute.key == CREATION, attribute.value_json == json.dumps(creation))
        .one_or_none()
    )


def take_trial(
    backend: RDBStorage, trial_id: int, claim: str, leases: Leases | None = None
) -> bool:
    """Set a WAITING trial RUNNING and claim it, in one transaction; False: another run has it, or
    the study has as many trials as it shall get.

    Raises UpdateFinishedTrialError for a trial that is finished.
    """
    with _create_scoped_session(backend.scoped_session) as session:
        if leases is not None:
            leases.lock(session)
        waiting = session.query(models.TrialModel).filter(
            models.TrialModel.trial_id == trial_id, models.TrialModel.state == TrialState.WAITING
        )
        if leases is not None and waiting.count():
            (study_id,) = waiting.with_entities(models.TrialModel.study_id).one()
            if not leases.may_add(session, _next_number(session, study_id) - 1):
                return False
        if waiting.update(
            {"state": TrialState.RUNNING, "datetime_start": datetime.now()},
            synchronize_session=False,
        ):
            backend._set_trial_attr_without_commit(
                session, models.TrialSystemAttributeModel, trial_id, CLAIM, claim
            )
            if leases is not None:
                leases.add(session, trial_id)
            return True
        trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session)
        backend.check_trial_is_updatable(trial_id, trial.state)
        found: Any = models.TrialSystemAttributeModel.find_by_trial_and_key(trial, CLAIM, session)
        # With this run's claim, an earlier attempt at this call has succeeded.
        return found is not None and json.loads(found.value_json) == claim


def insert_parameters(trial_id: int, backend: RDBStorage, values: Parameters) -> None:
    """Insert parameters of a trial that it does not have yet."""
    model = models.TrialParamModel
    with _create_scoped_session(backend.scoped_session) as session:
        trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session)
        backend.check_trial_is_updatable(trial_id, trial.state)
        names = sqlalchemy.select(model.param_name).where(model.trial_id == trial_id)
        present = set(session.execute(names).scalars())
        rows = [
            {
                "trial_id": trial_id,
                "param_name": name,
                "param_value": value,
                "distribution_json": distribution_to_json(distribution),
            }
            for name, (value, distribution) in values.items()
            if name not in present
        ]
        if rows:
            session.execute(sqlalchemy.insert(model), rows)


def delete_steps(backend: RDBStorage, trial_id: int, first: int) -> None:
    """Delete the intermediate values of a trial from step `first` on."""
    model = models.TrialIntermediateValueModel
    with _create_scoped_session(backend.scoped_session, True) as session:
        session.query(model).filter(model.trial_id == trial_id, model.step >= first).delete()
