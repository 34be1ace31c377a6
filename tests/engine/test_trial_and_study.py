"""Trial and study as an objective sees them, and the writes that are permitted."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.samplers import TPESampler
from optuna.trial import Trial, TrialState

import supermax
from supermax.engine import events
from supermax.testing import FAILURES

pytestmark = pytest.mark.usefixtures("quick")


def run(study: optuna.Study, objective: Any, n_trials: int, **options: Any) -> supermax.Summary:
    return supermax.optimize(study, objective, n_trials, progress=False, **options)


def fault(study: optuna.Study, number: int = 0) -> str:
    return str(study.trials[number].user_attrs["supermax"]["faults"][0]["message"])


# The study, seen from inside.


def test_global_study_is_a_read_only_view_in_a_trial(study: optuna.Study) -> None:
    study.set_user_attr("dataset", "iris")

    def objective(trial: Trial) -> float:
        if trial.number == 2:
            inside = study.best_trial
            trial.set_user_attr("best", [inside.number, study.best_value, study.best_params])
            trial.set_user_attr("dataset", study.user_attrs["dataset"])
            trial.set_user_attr("isinstance", isinstance(study, optuna.Study))
            study.stop()
        return trial.suggest_float("x", -10, 10) ** 2

    summary = run(study, objective, 50)
    assert summary.stopped_by == "study.stop()"
    assert len(study.trials) == 3
    attrs = study.trials[2].user_attrs
    best = min(study.trials[:2], key=lambda trial: trial.value)
    assert attrs["best"] == [best.number, best.value, best.params]
    assert (attrs["dataset"], attrs["isinstance"]) == ("iris", True)


def test_best_value_of_an_empty_study_raises_as_in_optuna(study: optuna.Study) -> None:
    run(study, lambda _: study.best_value, 1)
    assert fault(study) == "ValueError: No trials are completed yet."


WRITES = {
    "set_user_attr": lambda study: study.set_user_attr("a", 1),
    "enqueue_trial": lambda study: study.enqueue_trial({"x": 1}),
    "add_trial": lambda study: study.add_trial(optuna.trial.create_trial(value=1.0)),
    "ask": lambda study: study.ask(),
    "tell": lambda study: study.tell(0, 1.0),
    "optimize": lambda study: study.optimize(lambda _: 1.0, n_trials=1),
    "set_metric_names": lambda study: study.set_metric_names(["loss"]),
}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_writing_to_the_study_is_refused_with_a_message(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        said = {}
        for name, write in WRITES.items():
            for which, target in (("global", study), ("trial's", trial.study)):
                try:
                    write(target)
                except RuntimeError as error:
                    said[f"{which} {name}"] = str(error)
        trial.set_user_attr("said", said)
        return 1.0

    run(study, objective, 1)
    (trial,) = study.trials
    said = trial.user_attrs["said"]
    assert set(said) == {f"{which} {name}" for which in ("global", "trial's") for name in WRITES}
    assert all("read but not changed" in text for text in said.values())
    assert study.user_attrs == {}


def test_study_of_a_trial_returns_what_optuna_returns(url: str) -> None:
    study = optuna.create_study(storage=url, study_name="named", direction="maximize")
    study.set_user_attr("a", 1)

    def objective(trial: Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            seen = trial.study
            trial.set_user_attr(
                "seen",
                {
                    "direction": seen.direction.name,
                    "directions": [d.name for d in seen.directions],
                    "name": seen.study_name,
                    "best": seen.best_trial.number,
                    "trials": [t.state.name for t in seen.trials],
                    "pruned": [t.number for t in seen.get_trials(states=[TrialState.PRUNED])],
                    "running": [
                        t.number
                        for t in seen.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
                    ],
                    "attrs": seen.user_attrs,
                    "sampler": type(seen.sampler).__name__,
                    "pruner": type(seen.pruner).__name__,
                    "own params": seen.trials[2].params == {"x": x},
                },
            )
        return x

    run(study, objective, 3)
    assert study.trials[2].user_attrs["seen"] == {
        "direction": "MAXIMIZE",
        "directions": ["MAXIMIZE"],
        "name": "named",
        "best": 0,
        "trials": ["COMPLETE", "PRUNED", "RUNNING"],
        "pruned": [1],
        "running": [2],
        "attrs": {"a": 1},
        "sampler": "TPESampler",
        "pruner": "MedianPruner",
        "own params": True,
    }


def test_pruning_with_two_directions_is_refused_as_in_optuna(url: str) -> None:
    study = optuna.create_study(storage=url, directions=["minimize", "maximize"])
    run(study, lambda trial: (float(trial.should_prune()), 1.0), 1)
    assert fault(study).startswith("NotImplementedError")


# The trial.


def test_the_trial_is_optunas_trial(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        before = trial.params
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("c", -1.0)
        facts = {
            "isinstance": [isinstance(trial, optuna.trial.Trial), isinstance(trial, optuna.Trial)],
            "number": trial.number,
            "started": trial.datetime_start is not None,
            "params": [before, trial.params == {"x": x}],
            "distributions": [str(d) for d in trial.distributions.values()],
            "constraints": trial.constraints,
            "user_attrs": trial.user_attrs,
            "attempt": trial.attempt,
            "stop_requested": trial.stop_requested,
        }
        trial.set_user_attr("facts", facts)
        return x

    study.enqueue_trial({"x": 0.5}, user_attrs={"note": "by hand"})
    run(study, objective, 1)
    (trial,) = study.trials
    assert trial.user_attrs["facts"] == {
        "isinstance": [True, True],
        "number": 0,
        "started": True,
        "params": [{}, True],
        "distributions": ["FloatDistribution(high=1.0, log=False, low=0.0, step=None)"],
        "constraints": {"c": -1.0},
        "user_attrs": {"note": "by hand"},
        "attempt": 1,
        "stop_requested": False,
    }
    assert trial.value == 0.5


def test_relative_params_match_the_suggested_values(url: str) -> None:
    sampler = TPESampler(seed=0, multivariate=True, n_startup_trials=2)
    study = optuna.create_study(storage=url, sampler=sampler)

    def objective(trial: Trial) -> float:
        relative = trial.relative_params
        suggested = {"x": trial.suggest_float("x", 0, 1), "n": trial.suggest_int("n", 1, 9)}
        trial.set_user_attr("agree", [relative == suggested, relative == {}])
        return suggested["x"]

    run(study, objective, 4)
    assert [t.user_attrs["agree"] for t in study.trials] == [[False, True]] * 2 + [
        [True, False]
    ] * 2


def test_deprecated_suggestions_still_work(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        a = trial.suggest_uniform("a", 0, 1)
        b = trial.suggest_loguniform("b", 1e-3, 1)
        return a + b + trial.suggest_discrete_uniform("c", 0, 1, 0.25)

    run(study, objective, 2)
    for trial in study.trials:
        assert trial.value == pytest.approx(sum(trial.params.values()))
        assert trial.params["c"] % 0.25 == 0
        assert trial.distributions["b"].log


def test_second_attempt_finds_the_checkpoint_of_the_first(study: optuna.Study) -> None:
    def objective(trial: Trial) -> float:
        saved = trial.checkpoint_dir / "epoch"
        found = saved.read_text() if saved.exists() else None
        trial.set_user_attr("found", [trial.attempt, found])
        if trial.attempt == 1:
            saved.write_text("3")
            FAILURES["SIGSEGV"]()
        return trial.suggest_float("x", 0, 1)

    summary = run(study, objective, 2)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2
    assert [trial.user_attrs["found"] for trial in study.trials] == [[2, "3"]] * 2
    assert [trial.user_attrs["supermax"]["attempts"] for trial in study.trials] == [2, 2]
    assert summary.retries == 2


def test_queued_trials_beyond_the_target_say_how_to_run_them(study: optuna.Study) -> None:
    for x in (0.1, 0.2, 0.3):
        study.enqueue_trial({"x": x})
    said: list[str] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.Notice):
            said.append(event.text)

    def objective(trial: Any) -> float:
        return float(trial.suggest_float("x", 0, 1))

    supermax.optimize(study, objective, 1, progress=note)
    assert said == [
        "2 queued trials did not run: the search has its number of trials. n_trials=3 "
        "(--trials 3) runs them too."
    ]
    said.clear()
    supermax.optimize(study, objective, 3, progress=note)
    assert [trial.value for trial in study.trials] == [0.1, 0.2, 0.3]
    assert said == []
