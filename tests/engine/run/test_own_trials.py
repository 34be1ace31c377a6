"""Cache of a run's own RUNNING trials: it agrees with the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage

PARAMS: dict[str, Any] = {
    "lr": (FloatDistribution(1e-6, 1.0, log=True), [1e-3, 0.5]),
    "depth": (IntDistribution(1, 9), [1.0, 7.0]),
    "pool": (CategoricalDistribution(["cls", "mean", None]), [0, 2]),
}
VALUES = st.one_of(st.integers(), st.text(max_size=4), st.just((1, (2, 3))), st.just({1: "one"}))
WRITES = st.one_of(
    st.tuples(st.just("param"), st.sampled_from(list(PARAMS)), st.integers(0, 1)),
    st.tuples(
        st.just("report"), st.integers(0, 4), st.floats(-5, 5) | st.sampled_from([float("inf")])
    ),
    st.tuples(st.just("user"), st.sampled_from(["a", "b"]), VALUES),
    st.tuples(st.just("system"), st.sampled_from(["a", "b"]), VALUES),
    st.tuples(st.just("forget"), st.integers(0, 4), st.none()),
)


def opened(folder: Path) -> tuple[PatientStorage, optuna.Study, str]:
    url = f"sqlite:///{folder}/study.db"
    study = optuna.create_study(storage=url, study_name="s", load_if_exists=True)
    storage = PatientStorage(study._storage, study, file=None, patience=Patience(print))
    storage.claim = "ours"
    return storage, study, url


def write(storage: PatientStorage, trial_id: int, kind: str, key: Any, value: Any) -> None:
    if kind == "param":
        distribution, values = PARAMS[key]
        storage.set_trial_param(trial_id, key, values[value], distribution)
    elif kind == "report":
        storage.set_trial_intermediate_value(trial_id, key, value)
    elif kind == "user":
        storage.set_trial_user_attr(trial_id, key, value)
    elif kind == "system":
        storage.set_trial_system_attr(trial_id, key, value)
    else:
        storage.forget_steps(trial_id, key)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(WRITES, max_size=8))
def test_cache_and_database_agree(tmp_path: Path, writes: list[tuple[str, Any, Any]]) -> None:
    storage, study, url = opened(tmp_path)
    trial_id = storage.create_new_trial(study._study_id)
    for kind, key, value in writes:
        write(storage, trial_id, kind, key, value)
    ours = storage.get_trial(trial_id)
    theirs = optuna.load_study(storage=url, study_name="s")._storage.get_trial(trial_id)
    assert ours == theirs
    assert storage.get_trial_system_attrs(trial_id) == theirs.system_attrs
    storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
    assert storage.get_trial(trial_id).values == [1.0]


def test_changes_to_a_returned_trial_do_not_reach_the_cache(tmp_path: Path) -> None:
    storage, study, _ = opened(tmp_path)
    trial_id = storage.create_new_trial(study._study_id)
    storage.get_trial(trial_id).user_attrs["mine"] = 1
    storage.get_trial_system_attrs(trial_id).clear()
    assert storage.get_trial(trial_id).user_attrs == {}
    assert storage.get_trial_system_attrs(trial_id) == {"supermax:claim": "ours"}


def test_trial_finished_by_another_program_is_seen_at_the_next_write(tmp_path: Path) -> None:
    storage, study, url = opened(tmp_path)
    trial_id = storage.create_new_trial(study._study_id)
    optuna.load_study(storage=url, study_name="s").tell(0, state=TrialState.FAIL)
    with pytest.raises(UpdateFinishedTrialError):
        storage.set_trial_user_attr(trial_id, "late", 1)
    assert storage.get_trial(trial_id).state is TrialState.FAIL
