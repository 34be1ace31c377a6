"""Results and attributes: from an objective to the study."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.terminator import report_cross_validation_scores
from optuna.trial import Trial, TrialState

import supermax

pytestmark = pytest.mark.usefixtures("quick")


def run(study: optuna.Study, objective: Any, n_trials: int, **options: Any) -> supermax.Summary:
    return supermax.optimize(study, objective, n_trials, progress=False, **options)


class Model:
    """Stand-in for a trained model, which is not JSON."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights


def keep_the_model(trial: Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("model", Model([x]))
    return x


def test_the_recipe_for_keeping_models_works_in_memory() -> None:
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    run(study, keep_the_model, 3, workers=2)
    for trial in study.trials:
        assert isinstance(trial.user_attrs["model"], Model)
        assert trial.user_attrs["model"].weights == [trial.params["x"]]


@pytest.mark.parametrize("address", ["file", "sqlite:///:memory:"])
def test_on_sqlite_the_same_recipe_fails_in_the_objective(url: str, address: str) -> None:
    study = optuna.create_study(storage=url if address == "file" else address)

    def objective(trial: Trial) -> float:
        try:
            return keep_the_model(trial)
        except TypeError as error:
            trial.set_user_attr("raised", str(error))
            raise

    run(study, objective, 1)
    (trial,) = study.trials
    assert trial.state is TrialState.FAIL
    assert "not JSON serializable" in trial.user_attrs["raised"]
    assert "model" not in trial.user_attrs


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, "text", [1, [2, "3"]], {"a": {"b": [None]}}, float("inf"), {"$pickle": "x"}],
    ids=repr,
)
def test_attributes_come_back_as_they_were_set(study: optuna.Study, value: object) -> None:
    def objective(trial: Trial) -> float:
        trial.set_user_attr("given", value)
        return float(repr(trial.user_attrs["given"]) == repr(value))

    run(study, objective, 1)
    assert study.trials[0].value == 1.0
    assert study.trials[0].user_attrs["given"] == value


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("act", ["huge step", "attribute 'supermax'", "key that is no text"])
def test_value_rejected_by_the_storage_fails_its_trial_alone(
    study: optuna.Study, act: str
) -> None:
    """Optuna raises it in the objective; the run must not end with it."""

    def objective(trial: Trial) -> float:
        if trial.number == 0 and act == "huge step":
            trial.report(1.0, step=2**63)
        elif trial.number == 0 and act == "attribute 'supermax'":
            trial.set_user_attr("supermax", 5)
        elif trial.number == 0:
            trial.set_user_attr("half a character: \ud800", 1)
        return 1.0

    summary = run(study, objective, 2)
    assert summary.finished == 2
    assert study.trials[1].state is TrialState.COMPLETE


def test_cross_validation_scores_end_up_in_the_study(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        scores = [0.5, 0.25, 0.75]
        report_cross_validation_scores(trial, scores)
        return sum(scores)

    run(study, objective, 2)
    for trial in study.trials:
        assert trial.state is TrialState.COMPLETE
        assert trial.system_attrs["terminator:cv_scores"] == [0.5, 0.25, 0.75]


def test_attribute_of_a_class_only_the_cell_knows_fails_its_trial(
    tmp_path: Path,
) -> None:
    (tmp_path / "only_in_cells.py").write_text("class Net: pass\n")

    def objective(trial: Trial) -> float:
        sys.path.insert(0, str(tmp_path))
        import only_in_cells  # type: ignore[import-not-found]

        if trial.number == 0:
            trial.set_user_attr("model", only_in_cells.Net())
        return 1.0

    study = optuna.create_study()
    summary = run(study, objective, 2, trial_timeout=20.0)
    assert summary.finished == 2
    assert study.trials[1].state is TrialState.COMPLETE


def test_numpy_numbers_are_numbers(study: optuna.Study) -> None:
    import numpy as np

    def objective(trial: Trial) -> Any:
        n = trial.suggest_int("n", np.int64(1), np.int64(9))
        x = trial.suggest_float("x", np.float32(0), np.float64(1))
        trial.suggest_categorical("c", [np.float64(0.5), np.float64(1.5)])
        trial.report(np.float32(0.5), np.int64(3))
        trial.set_constraint("k", np.float32(-1))
        trial.set_user_attr("score", np.float64(0.25))
        return np.float32(n + x)

    run(study, objective, 2)
    for trial in study.trials:
        assert trial.state is TrialState.COMPLETE
        assert trial.value == pytest.approx(trial.params["n"] + trial.params["x"], rel=1e-6)
        assert trial.params["c"] in (0.5, 1.5)
        assert trial.intermediate_values == {3: 0.5}
        assert trial.constraints == {"k": -1.0}
        assert trial.user_attrs["score"] == 0.25


@pytest.mark.parametrize("result", [[0.5], (0.5,), "0.5", True], ids=repr)
def test_results_accepted_by_optuna_are_accepted(study: optuna.Study, result: Any) -> None:
    run(study, lambda _: result, 1)
    assert study.trials[0].value == float(
        result[0] if isinstance(result, (list, tuple)) else result
    )
