"""Conditional spaces: one name with other choices, another type or scale in each branch."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

import supermax
from supermax._util.attributes import plain_name
from supermax.engine.events import Event, TrialFinished
from supermax.testing import FAILURES

pytestmark = pytest.mark.usefixtures("quick")


def run(study: optuna.Study, objective: Any, n_trials: int, **options: Any) -> supermax.Summary:
    options.setdefault("progress", False)
    return supermax.optimize(study, objective, n_trials, **options)


def tree(trial: Trial) -> float:
    """Suggest parameters that, except the first, have another distribution in each branch."""
    if trial.suggest_categorical("model", ["mlp", "svm"]) == "mlp":
        choice = trial.suggest_categorical("activation", ["relu", "tanh"])
        number = trial.suggest_float("size", 0, 1)
        scale = trial.suggest_float("rate", 0.1, 1)
    else:
        choice = trial.suggest_categorical("activation", ["tanh", "rbf", "poly"])
        number = trial.suggest_int("size", 2, 9)
        scale = trial.suggest_float("rate", 0.1, 1, log=True)
    trial.set_user_attr("got", {"activation": choice, "size": number, "rate": scale})
    trial.set_user_attr("params", trial.params)
    trial.set_user_attr("distributions", sorted(trial.distributions))
    return float(number)


def check(trial: FrozenTrial) -> None:
    """Assert that the objective saw plain names and the study has a name for each branch."""
    assert trial.state is TrialState.COMPLETE
    got = {"model": trial.params["model"], **trial.user_attrs["got"]}
    assert trial.user_attrs["params"] == got
    assert trial.user_attrs["distributions"] == ["activation", "model", "rate", "size"]
    assert {plain_name(name): value for name, value in trial.params.items()} == got
    assert type(got["size"]) is (float if got["model"] == "mlp" else int)


def both_branches(study: optuna.Study) -> None:
    for model in ("mlp", "svm"):
        study.enqueue_trial({"model": model})


def test_every_branch_has_a_stored_name_of_its_own(study: optuna.Study) -> None:
    both_branches(study)
    run(study, tree, 2)
    for trial in study.trials:
        check(trial)
    mlp, svm = study.trials
    assert set(mlp.params) == {"model", "activation", "size", "rate"}
    assert set(svm.params) == {
        "model",
        "activation@[tanh|rbf|poly]",
        "size@[int]",
        "rate@[float log]",
    }


def test_stored_names_are_the_same_in_later_runs(url: str, study: optuna.Study) -> None:
    both_branches(study)
    run(study, tree, 2)
    again = optuna.load_study(storage=url, study_name="test", sampler=RandomSampler(seed=2))
    for model in ("svm", "mlp"):  # the other way round: who came first is in the study
        again.enqueue_trial({"model": model})
    run(again, tree, 6, workers=2)
    for trial in again.trials:
        check(trial)
    names = {name for trial in again.trials for name in trial.params}
    assert len(names) == 7
    assert set(again.trials[2].params) == set(again.trials[1].params)
    assert set(again.trials[3].params) == set(again.trials[0].params)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("group", [False, True])
def test_tpe_learns_across_branches(url: str, group: bool) -> None:
    sampler = TPESampler(seed=0, n_startup_trials=3, multivariate=group, group=group)
    study = optuna.create_study(storage=url, sampler=sampler)
    both_branches(study)
    run(study, tree, 9, workers=2)
    for trial in study.trials:
        check(trial)


ENQUEUED: list[dict[str, Any]] = [
    {"model": "mlp", "activation": "relu", "size": 0.5, "rate": 0.2},
    {"model": "svm", "activation": "rbf", "size": 5, "rate": 0.3},
    {"model": "mlp", "activation": "tanh"},
    {"model": "svm", "activation": "tanh"},
]


def test_an_enqueued_value_reaches_whichever_branch_is_taken(study: optuna.Study) -> None:
    both_branches(study)
    for params in ENQUEUED:
        study.enqueue_trial(params)
    run(study, tree, 2 + len(ENQUEUED))
    for params, trial in zip(ENQUEUED, study.trials[2:], strict=True):
        check(trial)
        assert params.items() <= trial.user_attrs["params"].items()


def test_an_enqueued_choice_that_the_branch_does_not_have_is_left_out(study: optuna.Study) -> None:
    both_branches(study)
    study.enqueue_trial({"model": "mlp", "activation": "poly"})
    study.enqueue_trial({"model": "svm", "activation": "relu", "size": 4})
    run(study, tree, 4)
    for trial in study.trials:
        check(trial)
    assert study.trials[2].user_attrs["got"]["activation"] in ("relu", "tanh")
    assert study.trials[3].user_attrs["got"]["activation"] in ("tanh", "rbf", "poly")
    assert study.trials[3].user_attrs["got"]["size"] == 4


def test_choices_that_only_look_alike_are_kept_apart(study: optuna.Study) -> None:
    spaces = [["1", "2"], [1, 2], ["1|2", "3"], ["1", "2|3"], [None, "None"], ["None", None]]

    def objective(trial: Trial) -> float:
        space = spaces[trial.number]
        trial.set_user_attr("fits", trial.suggest_categorical("c", space) in space)
        return 0.0

    run(study, objective, len(spaces))
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * len(spaces)
    assert all(trial.user_attrs["fits"] for trial in study.trials)
    stored = [next(iter(trial.params)) for trial in study.trials]
    assert len(set(stored)) == len(spaces)
    assert {plain_name(name) for name in stored} == {"c"}


def test_suggesting_twice_in_one_trial_gives_the_same_values(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        spaces = (["a", "b"], ["c", "d"])
        answers = [trial.suggest_categorical("c", spaces[i % 2]) for i in range(6)]
        return float(len(set(answers)))

    run(study, objective, 3)
    assert [trial.value for trial in study.trials] == [2.0] * 3


def test_a_retry_takes_the_same_values_in_its_branch(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        value = tree(trial)
        if trial.number == 1 and trial.attempt == 1:
            (trial.checkpoint_dir / "first").write_text(repr(trial.params))
            FAILURES["SIGSEGV"]()
        if trial.number == 1:
            first = (trial.checkpoint_dir / "first").read_text()
            trial.set_user_attr("same", first == repr(trial.params))
        return value

    both_branches(study)
    summary = run(study, objective, 2)
    assert summary.retries == 1
    for trial in study.trials:
        check(trial)
    assert study.trials[1].user_attrs["same"] is True
    assert len(study.trials[1].params) == 4


def test_displays_and_other_trials_see_plain_names(study: optuna.Study) -> None:
    events: list[Event] = []

    def objective(trial: Trial) -> float:
        value = tree(trial)
        if trial.number == 2:
            seen = [sorted(other.params) for other in trial.study.trials[:2]]
            trial.set_user_attr("others", seen)
            trial.set_user_attr("best", sorted(trial.study.best_params))
        return value

    both_branches(study)
    run(study, objective, 3, progress=events.append)
    plain = ["activation", "model", "rate", "size"]
    assert study.trials[2].user_attrs["others"] == [plain, plain]
    assert study.trials[2].user_attrs["best"] == plain
    finished = [event for event in events if isinstance(event, TrialFinished)]
    assert [sorted(event.params) for event in finished] == [plain] * 3


def test_repeating_failed_trials_keeps_their_branch(study: optuna.Study) -> None:
    def failing(trial: Trial) -> float:
        tree(trial)
        raise ValueError("not yet")

    both_branches(study)
    run(study, failing, 2)
    assert supermax.retry(study) == [0, 1]
    run(study, tree, 4)
    for trial in study.trials[2:]:
        check(trial)
        assert trial.params == study.trials[trial.number - 2].params


def test_user_parameter_named_like_a_branch_is_kept(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        trial.suggest_float("x@[1]", 0, 1)
        if trial.number == 0:
            raise ValueError("not yet")
        trial.set_user_attr("seen", [sorted(other.params) for other in trial.study.trials])
        return 1.0

    run(study, objective, 1)
    supermax.retry(study)
    run(study, objective, 2)
    assert study.trials[1].user_attrs["seen"] == [["x@[1]"], ["x@[1]"]]
    assert study.trials[1].params == study.trials[0].params
