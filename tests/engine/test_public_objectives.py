"""Published objectives, unchanged: models, training loops, branches, callbacks."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna._imports import _LazyImport as LazyImport
from optuna.pruners import HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState

import supermax
from supermax.engine.processes.pickling import pickle_objective
from tests.few import a_few

pytestmark = pytest.mark.usefixtures("quick")


def run(study: optuna.Study, objective: Any, n_trials: int | None, **options: Any) -> Any:
    return supermax.optimize(study, objective, n_trials, progress=False, **options)


def states(study: optuna.Study) -> set[TrialState]:
    return {trial.state for trial in study.trials}


# Models and training loops.


@pytest.mark.slow
def test_scikit_learn_with_a_conditional_choice_of_model(study: optuna.Study) -> None:
    import sklearn.datasets
    import sklearn.ensemble
    import sklearn.model_selection
    import sklearn.svm

    def objective(trial: Trial) -> float:
        x, y = sklearn.datasets.load_iris(return_X_y=True)
        if trial.suggest_categorical("classifier", ["SVC", "RandomForest"]) == "SVC":
            c = trial.suggest_float("svc_c", 1e-3, 1e3, log=True)
            model = sklearn.svm.SVC(C=c, gamma="auto")
        else:
            depth = trial.suggest_int("rf_max_depth", 2, 32, log=True)
            model = sklearn.ensemble.RandomForestClassifier(max_depth=depth, n_estimators=5)
        return sklearn.model_selection.cross_val_score(model, x, y, n_jobs=1, cv=3).mean()

    study.enqueue_trial({"classifier": "RandomForest"})
    study.enqueue_trial({"classifier": "SVC"})
    run(study, objective, 5, workers=2)
    assert states(study) == {TrialState.COMPLETE}
    assert set(study.trials[0].params) == {"classifier", "rf_max_depth"}
    assert set(study.trials[1].params) == {"classifier", "svc_c"}
    assert all(0.3 < trial.value <= 1.0 for trial in study.trials)


def train(torch: Any, trial: Trial) -> float:
    """Train like Optuna's examples: report each epoch, and prune."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    units = trial.suggest_int("units", 4, 16)
    model = torch.nn.Sequential(
        torch.nn.Linear(1, units), torch.nn.ReLU(), torch.nn.Linear(units, 1)
    )
    lr = trial.suggest_float("lr", 1e-5, 1.0, log=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss = torch.tensor(0.0)
    for epoch in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), x**2)
            loss.backward()
            optimizer.step()
        trial.report(loss.item(), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss.item()


def train_within(trial: Trial) -> float:
    import torch

    return train(torch, trial)


def check_training(study: optuna.Study, objective: Any, **options: Any) -> None:
    """Run a good configuration, then a bad one, which must be pruned."""
    study.enqueue_trial({"units": 8, "lr": 0.3})
    study.enqueue_trial({"units": 8, "lr": 1e-5})
    run(study, objective, 2, **options)
    good, bad = study.trials
    assert (good.state, bad.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    assert list(good.intermediate_values) == [0, 1, 2, 3]
    assert good.value == good.intermediate_values[3]
    last = max(bad.intermediate_values)
    assert last < 3
    assert list(bad.intermediate_values) == list(range(last + 1))
    assert bad.value == bad.intermediate_values[last]  # what Optuna makes of a pruned trial
    assert study.best_params == {"units": 8, "lr": 0.3}


@pytest.mark.slow
def test_torch_imported_at_module_level(url: str) -> None:
    torch = pytest.importorskip("torch")
    pruner = MedianPruner(n_startup_trials=1)
    study = optuna.create_study(storage=url, sampler=RandomSampler(seed=3), pruner=pruner)
    check_training(study, functools.partial(train, torch))


@pytest.mark.slow
@pytest.mark.parametrize(
    "pruner",
    a_few(
        [
            SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
            HyperbandPruner(min_resource=1, max_resource=4, reduction_factor=4),
        ]
    ),
    ids=lambda pruner: type(pruner).__name__,
)
def test_torch_imported_within_the_objective(pruner: Any) -> None:
    study = optuna.create_study(sampler=TPESampler(seed=0), pruner=pruner, study_name="halving")
    check_training(study, train_within, reuse_cells=True)


def test_two_directions(url: str) -> None:
    def objective(trial: Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 5)
        y = trial.suggest_float("y", 0, 3)
        return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2

    study = optuna.create_study(storage=url, directions=["minimize", "maximize"])
    run(study, objective, 6, workers=2)
    assert states(study) == {TrialState.COMPLETE}
    assert all(len(trial.values) == 2 for trial in study.trials)
    assert study.best_trials


def test_constraints_reach_the_study_and_the_sampler(url: str) -> None:
    def objective(trial: Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", -15, 30)
        y = trial.suggest_float("y", -15, 30)
        trial.set_constraint("circle", (x - 5) ** 2 + y**2 - 25)
        trial.set_constraint("half", -x)
        trial.set_user_attr("seen", trial.constraints)
        return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2

    study = optuna.create_study(
        storage=url,
        directions=["minimize", "minimize"],
        sampler=TPESampler(seed=0, n_startup_trials=3),
    )
    run(study, objective, 6, workers=2)
    for trial in study.trials:
        x, y = trial.params["x"], trial.params["y"]
        assert trial.constraints == {"circle": (x - 5) ** 2 + y**2 - 25, "half": -x}
        assert trial.user_attrs["seen"] == trial.constraints
    feasible = [t for t in study.trials if all(v <= 0 for v in t.constraints.values())]
    assert {t.number for t in study.best_trials} <= {t.number for t in feasible}


# Any callable.


class Quadratic:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self, trial: Trial) -> float:
        return (trial.suggest_float("x", -10, 10) - self.at) ** 2

    def method(self, trial: Trial) -> float:
        return self(trial)


def closure(at: float) -> Callable[[Trial], float]:
    def objective(trial: Trial) -> float:
        return (trial.suggest_float("x", -10, 10) - at) ** 2

    return objective


def with_target(trial: Trial, at: float) -> float:
    return (trial.suggest_float("x", -10, 10) - at) ** 2


CALLABLES: dict[str, Callable[[Any], float]] = {
    "lambda": lambda trial: (trial.suggest_float("x", -10, 10) - 3) ** 2,
    "closure": closure(3),
    "partial": functools.partial(with_target, at=3),
    "instance": Quadratic(3),
    "bound method": Quadratic(3).method,
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_any_callable_is_an_objective(study: optuna.Study, kind: str) -> None:
    run(study, CALLABLES[kind], 2)
    for trial in study.trials:
        assert trial.value == (trial.params["x"] - 3) ** 2


@pytest.mark.slow
def test_a_script_whose_objective_uses_its_globals(tmp_path: Path, url: str) -> None:
    """`python script.py`, with helpers, constants and the study itself at its top level."""
    script = tmp_path / "script.py"
    script.write_text(
        "import optuna, supermax\n"
        "TARGET = 3\n"
        "def helper(x): return (x - TARGET) ** 2\n"
        "def objective(trial):\n"
        "    if trial.number > 0:\n"
        "        trial.set_user_attr('best', study.best_value)\n"
        "    return helper(trial.suggest_float('x', -10, 10))\n"
        f"study = optuna.create_study(storage={url!r}, study_name='script')\n"
        "print(supermax.optimize(study, objective, n_trials=3, progress=False).finished)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "3\n", done.stderr
    trials = optuna.load_study(storage=url, study_name="script").trials
    values = [trial.value for trial in trials]
    assert trials[1].user_attrs["best"] == values[0]
    assert trials[2].user_attrs["best"] == min(values[:2])


@pytest.mark.slow
def test_a_script_that_searches_in_spawned_processes(tmp_path: Path) -> None:
    """The script's own names are in the module `__mp_main__` there."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, optuna, supermax\n"
        "class Objective:\n"
        "    def __call__(self, trial): return trial.suggest_float('x', -10, 10) ** 2\n"
        "def search(number):\n"
        "    study = optuna.create_study()\n"
        "    return supermax.optimize(study, Objective(), n_trials=2, progress=False).finished\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        print(pool.map(search, range(2)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[2, 2]\n", done.stderr


# Modules that import what they hold when it is asked for.


def with_a_callback(*, used: bool) -> Callable[[Trial], float]:
    """Objective like Optuna's LightGBM and XGBoost examples; pickled by value, like a script's."""

    def objective(trial: Trial) -> float:
        if not used:
            return 1.0
        return float(optuna.integration.LightGBMPruningCallback(trial, "auc").value)

    return objective


def test_optuna_integration_that_is_installed(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "path" / "optuna_integration"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lightgbm.py").write_text(
        "class LightGBMPruningCallback:\n    def __init__(self, trial, metric): self.value = 2\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    run(study, with_a_callback(used=True), 1)
    assert study.best_value == 2


def test_optuna_integration_that_is_not_installed(study: optuna.Study) -> None:
    if importlib.util.find_spec("optuna_integration") is not None:
        pytest.skip("optuna-integration is installed")
    run(study, with_a_callback(used=False), 1)
    assert study.best_value == 1
    run(study, with_a_callback(used=True), 2)
    assert study.trials[1].state is TrialState.FAIL
    fault = study.trials[1].user_attrs["supermax"]["faults"][0]
    assert "optuna-integration" in fault["message"]


class Facade:
    """Object in sys.modules that is not a module, as some packages have."""

    __name__ = "facade"
    answer = 42


LAZY: dict[str, Callable[[], Any]] = {
    "optuna.integration": lambda: optuna.integration,
    "optuna.visualization": lambda: LazyImport("optuna.visualization"),
    "transformers": lambda: pytest.importorskip("transformers"),
    "transformers.models": lambda: pytest.importorskip("transformers.models"),
    "facade": Facade,
}


@pytest.mark.parametrize("name", a_few(list(LAZY), 2))
def test_modules_of_any_class_go_by_name(
    name: str, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = LAZY[name]()
    if name == "facade":
        monkeypatch.setitem(sys.modules, name, module)
    blob = pickle_objective(lambda trial: module, study)
    assert len(blob) < 1000
    assert pickle.loads(blob)(None) is sys.modules[name]


@pytest.mark.parametrize("name", ["nowhere_to_be_found", "nowhere.to.be_found"])
def test_lazy_module_that_cannot_be_imported_is_named(study: optuna.Study, name: str) -> None:
    nowhere = LazyImport(name)
    with pytest.raises(supermax.UserError, match="the variable 'nowhere' is a _LazyImport"):
        run(study, lambda trial: nowhere, 1)


# Callbacks.


def quadratic(trial: Trial) -> float:
    return trial.suggest_float("x", -10, 10) ** 2


def test_max_trials_callback_ends_the_run(study: optuna.Study) -> None:
    summary = run(study, quadratic, None, callbacks=[MaxTrialsCallback(3)])
    assert len(study.trials) == 3
    assert summary.stopped_by == "study.stop()"


def test_a_callback_that_stops_the_study(study: optuna.Study) -> None:
    seen = []

    def stop_at_the_second(given: optuna.Study, trial: FrozenTrial) -> None:
        seen.append((given is study, trial.number, trial.state, trial.value))
        if trial.number == 1:
            given.stop()

    run(study, quadratic, 50, callbacks=[stop_at_the_second])
    assert seen == [(True, t.number, TrialState.COMPLETE, t.value) for t in study.trials]
    assert len(seen) == 2
    run(study, quadratic, 4)  # the stop was for that run alone
    assert len(study.trials) == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_callback_that_raises_leaves_a_valid_study(study: optuna.Study, workers: int) -> None:
    def give_up(_: optuna.Study, trial: FrozenTrial) -> None:
        raise ZeroDivisionError(f"callback after {trial.number}")

    with pytest.raises(ZeroDivisionError, match="callback after"):
        run(study, quadratic, 6, workers=workers, callbacks=[give_up])
    finished = [trial for trial in study.trials if trial.state.is_finished()]
    assert [trial.state for trial in finished] == [TrialState.COMPLETE]
    study.set_user_attr("study is usable", True)

    summary = run(study, quadratic, 6, workers=workers)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 6
    assert summary.faults == {}
    assert study.trials[finished[0].number] == finished[0]


def test_an_objective_reads_the_arguments_of_its_program(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like argparse without explicit arguments."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--depth", "7"])
    run(study, lambda _: float(sys.argv[sys.argv.index("--depth") + 1]), 1)
    assert study.best_value == 7
