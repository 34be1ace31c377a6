"""Part that each run had in a study on a database server: trials it finished, trials it lost."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass

import sqlalchemy as sa
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import TrialState

from supermax._util.attributes import CLAIM, TAKEN_FROM


@dataclass(frozen=True)
class RunHistory:
    """Trials of all runs on a study, by the run's id."""

    finished: dict[str, int]
    """Run → number of finished trials that it owned at their end."""
    lost: dict[str, tuple[int, ...]]
    """Run → numbers of trials that other runs have taken over from it."""


def read_history(backend: RDBStorage, study_id: int) -> RunHistory:
    trial, attribute = models.TrialModel, models.TrialSystemAttributeModel
    of_study = trial.study_id == study_id
    ended = trial.state.in_([state for state in TrialState if state.is_finished()])
    counts = (
        sa.select(attribute.value_json, sa.func.count())
        .join(trial, trial.trial_id == attribute.trial_id)
        .where(of_study, ended, attribute.key == CLAIM)
        .group_by(attribute.value_json)
    )
    takeovers = (
        sa.select(trial.number, attribute.value_json)
        .join(trial, trial.trial_id == attribute.trial_id)
        .where(of_study, attribute.key.startswith(TAKEN_FROM, autoescape=True))
        .order_by(trial.number)
    )
    lost: dict[str, list[int]] = defaultdict(list)
    with _create_scoped_session(backend.scoped_session) as session:
        finished = {str(json.loads(run)): int(count) for run, count in session.execute(counts)}
        for number, run in session.execute(takeovers):
            lost[str(json.loads(run))].append(number)
    return RunHistory(finished, {run: tuple(numbers) for run, numbers in lost.items()})
