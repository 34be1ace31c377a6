"""Bulk insertion of trials into a study.

Optuna's add_trial takes tens of milliseconds per trial on a database. Here a batch of trials is
one transaction of bulk inserts. Trials that the study has already, by their origin, are skipped.
That is decided inside the same transaction, so that a crash or a concurrent program writes no
trial twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.study import Study
from optuna.trial import FrozenTrial
from sqlalchemy.orm import Session

from supermax._util.attributes import ORIGIN
from supermax.space.migration.carry import Origin, Root

_BATCH = 500
_Rows = list[dict[str, object]]
Progress = Callable[[str, int, int], None]
"""Called with a description, the number of trials done, and their total."""


def add_trials(
    study: Study, trials: Sequence[FrozenTrial], progress: Progress | None = None
) -> int:
    """Add the trials whose origin is not in the study yet. Return their number."""
    backend = study._storage
    if isinstance(backend, _CachedStorage):
        backend = backend._backend
    added = 0
    for start in range(0, len(trials), _BATCH):
        batch = trials[start : start + _BATCH]
        if isinstance(backend, RDBStorage):
            added += _insert(backend, study._study_id, batch)
        else:
            added += _add_each(study, batch)
        if progress is not None:
            progress("Carrying trials over", start + len(batch), len(trials))
    return added


def _key(origin: Origin | None) -> Root | None:
    return (origin["study"], origin["number"]) if origin else None


def _add_each(study: Study, batch: Sequence[FrozenTrial]) -> int:
    present = {_key(t.system_attrs.get(ORIGIN)) for t in study.get_trials(deepcopy=False)}
    missing = [t for t in batch if _key(t.system_attrs[ORIGIN]) not in present]
    for trial in missing:
        study._storage.create_new_trial(study._study_id, template_trial=trial)
    return len(missing)


def _insert(backend: RDBStorage, study_id: int, batch: Sequence[FrozenTrial]) -> int:
    with _create_scoped_session(backend.scoped_session) as session:
        if backend.engine.dialect.name == "sqlite":  # its driver begins only at the first write
            session.connection().exec_driver_sql("BEGIN IMMEDIATE")
        models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
        present = _origins(session, study_id)
        missing = [t for t in batch if _key(t.system_attrs[ORIGIN]) not in present]
        number = session.query(models.TrialModel).filter_by(study_id=study_id).count()
        rows = [
            models.TrialModel(
                study_id=study_id,
                number=number + i,
                state=trial.state,
                datetime_start=trial.datetime_start,
                datetime_complete=trial.datetime_complete,
            )
            for i, trial in enumerate(missing)
        ]
        session.add_all(rows)
        session.flush()  # assigns the ids
        ids = [(int(row.trial_id), trial) for row, trial in zip(rows, missing, strict=True)]
        for model, values in _tables(ids):
            if values:
                session.execute(sqlalchemy.insert(model), values)
    return len(missing)


def _origins(session: Session, study_id: int) -> set[Root | None]:
    attributes = models.TrialSystemAttributeModel
    query = (
        session.query(attributes.value_json)
        .join(models.TrialModel, models.TrialModel.trial_id == attributes.trial_id)
        .filter(models.TrialModel.study_id == study_id, attributes.key == ORIGIN)
    )
    return {_key(json.loads(text)) for (text,) in query}


def _tables(
    ids: Sequence[tuple[int, FrozenTrial]],
) -> Iterator[tuple[type[models.BaseModel], _Rows]]:
    """Yield the rows of every table that refers to trials."""
    yield (
        models.TrialValueModel,
        [_value(i, n, v) for i, t in ids for n, v in enumerate(t.values or ())],
    )
    yield models.TrialParamModel, [_param(i, t, name) for i, t in ids for name in t.params]
    yield (
        models.TrialUserAttributeModel,
        [_attribute(i, k, v) for i, t in ids for k, v in t.user_attrs.items()],
    )
    yield (
        models.TrialSystemAttributeModel,
        [_attribute(i, k, v) for i, t in ids for k, v in t.system_attrs.items()],
    )
    yield (
        models.TrialIntermediateValueModel,
        [_step(i, s, v) for i, t in ids for s, v in t.intermediate_values.items()],
    )


def _value(trial_id: int, objective: int, value: float) -> dict[str, object]:
    stored, kind = models.TrialValueModel.value_to_stored_repr(value)
    return {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}


def _param(trial_id: int, trial: FrozenTrial, name: str) -> dict[str, object]:
    distribution = trial.distributions[name]
    return {
        "trial_id": trial_id,
        "param_name": name,
        "param_value": distribution.to_internal_repr(trial.params[name]),
        "distribution_json": distribution_to_json(distribution),
    }


def _attribute(trial_id: int, key: str, value: object) -> dict[str, object]:
    return {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}


def _step(trial_id: int, step: int, value: float) -> dict[str, object]:
    model = models.TrialIntermediateValueModel
    stored, kind = model.intermediate_value_to_stored_repr(value)
    return {
        "trial_id": trial_id,
        "step": step,
        "intermediate_value": stored,
        "intermediate_value_type": kind,
    }
