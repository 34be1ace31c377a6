"""All samplers and pruners of Optuna, exhausted grids, seeds; the coordinator without torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import optuna
import pytest
from optuna import pruners, samplers
from optuna.trial import Trial, TrialState

import supermax
from tests.few import a_few, quick_are

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]
GRID = {"x": [0, 1, 2], "c": ["a", "b"]}
POINTS = {(x, c) for x in GRID["x"] for c in GRID["c"]}


def run(
    study: optuna.Study, objective: Any, n_trials: int | None, **options: Any
) -> supermax.Summary:
    return supermax.optimize(study, objective, n_trials, progress=False, **options)


def mixed(trial: Trial) -> float:
    x = trial.suggest_float("x", -5, 5)
    n = trial.suggest_int("n", 1, 8, log=True)
    return x**2 + n + (trial.suggest_categorical("c", ["a", "b"]) == "a")


def numeric(trial: Trial) -> float:
    return trial.suggest_float("x", -5, 5) ** 2 + trial.suggest_float("y", 1e-3, 1, log=True)


def on_the_grid(trial: Trial) -> float:
    return trial.suggest_int("x", 0, 2) + (trial.suggest_categorical("c", ["a", "b"]) == "a")


def two(trial: Trial) -> tuple[float, float]:
    x, y = trial.suggest_float("x", 0, 5), trial.suggest_float("y", 0, 3)
    trial.set_constraint("c", x - 4)
    return x**2 + y**2, (x - 5) ** 2 + (y - 5) ** 2


# Samplers: (how to make one, an objective for it, directions).
SAMPLERS: dict[str, tuple[Callable[[], Any], Any, int]] = {
    "Random": (lambda: samplers.RandomSampler(seed=0), mixed, 1),
    "TPE": (lambda: samplers.TPESampler(seed=0, n_startup_trials=3), mixed, 1),
    "TPE, multivariate, group, constant liar": (
        lambda: samplers.TPESampler(
            seed=0, n_startup_trials=3, multivariate=True, group=True, constant_liar=True
        ),
        mixed,
        1,
    ),
    "TPE, two directions": (lambda: samplers.TPESampler(seed=0, n_startup_trials=3), two, 2),
    "CmaEs": (lambda: samplers.CmaEsSampler(seed=0, n_startup_trials=2), numeric, 1),
    "QMC": (lambda: samplers.QMCSampler(seed=0, scramble=True), numeric, 1),
    "NSGA-II": (lambda: samplers.NSGAIISampler(seed=0, population_size=4), two, 2),
    "NSGA-III": (lambda: samplers.NSGAIIISampler(seed=0, population_size=4), two, 2),
    "Grid": (lambda: samplers.GridSampler(GRID), on_the_grid, 1),
    "BruteForce": (
        lambda: samplers.BruteForceSampler(seed=0, avoid_premature_stop=True),
        on_the_grid,
        1,
    ),
    "PartialFixed": (
        lambda: samplers.PartialFixedSampler({"x": 1.5}, samplers.TPESampler(seed=0)),
        mixed,
        1,
    ),
}


@pytest.mark.parametrize("name", a_few([*SAMPLERS], 5))
def test_every_sampler_runs(url: str, name: str) -> None:
    make, objective, directions = SAMPLERS[name]
    study = optuna.create_study(storage=url, sampler=make(), directions=["minimize"] * directions)
    summary = run(study, objective, 6, workers=2)
    assert summary.trials["COMPLETE"] == 6
    assert summary.faults == {}
    if name == "PartialFixed":
        assert {trial.params["x"] for trial in study.trials} == {1.5}
    if name == "Grid":
        assert {(t.params["x"], t.params["c"]) for t in study.trials} == POINTS


def test_the_gp_sampler_runs(url: str) -> None:
    pytest.importorskip("torch")
    sampler = samplers.GPSampler(seed=0, n_startup_trials=2)
    study = optuna.create_study(storage=url, sampler=sampler)
    assert run(study, numeric, 4, workers=2).trials["COMPLETE"] == 4


# Pruners.

PRUNERS: dict[str, Callable[[], Any]] = {
    "Median": lambda: pruners.MedianPruner(n_startup_trials=1),
    "Percentile": lambda: pruners.PercentilePruner(25.0, n_startup_trials=1),
    "SuccessiveHalving": lambda: pruners.SuccessiveHalvingPruner(
        min_resource=1, reduction_factor=2
    ),
    "Hyperband": lambda: pruners.HyperbandPruner(
        min_resource=1, max_resource=6, reduction_factor=2
    ),
    "Threshold": lambda: pruners.ThresholdPruner(upper=4.5),
    "Patient": lambda: pruners.PatientPruner(pruners.MedianPruner(n_startup_trials=1), patience=0),
    "Wilcoxon": lambda: pruners.WilcoxonPruner(p_threshold=0.5, n_startup_steps=0),
    "Nop": pruners.NopPruner,
}


def curve(trial: Trial) -> float:
    """Report values that get worse with the trial's number, at every step."""
    level = float(trial.number)
    trial.suggest_float("x", 0, 1)
    for step in range(6):
        trial.report(level + step / 100, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return level


@pytest.mark.parametrize(("name", "workers"), a_few([*product(PRUNERS, (1, 2))], 5))
def test_every_pruner_runs(url: str, name: str, workers: int) -> None:
    study = optuna.create_study(
        storage=url,
        study_name="pruned",
        sampler=samplers.RandomSampler(seed=0),
        pruner=PRUNERS[name](),
    )
    summary = run(study, curve, 6, workers=workers)
    assert summary.trials["COMPLETE"] + summary.trials["PRUNED"] == 6
    assert summary.faults == {}
    assert study.trials[0].state is TrialState.COMPLETE
    if name == "Nop":
        assert summary.trials["PRUNED"] == 0
    elif workers == 1 or name == "Threshold":
        assert study.trials[5].state is TrialState.PRUNED


# Grids.


def visited(study: optuna.Study) -> Counter[tuple[int, str]]:
    return Counter((trial.params["x"], trial.params["c"]) for trial in study.trials)


@pytest.mark.parametrize(
    ("kind", "n_trials"),
    quick_are([("Grid", None), ("BruteForce", 50)], product(["Grid", "BruteForce"], [None, 50])),
)
def test_exhausted_grid_ends_the_run(url: str, kind: str, n_trials: int | None) -> None:
    make, objective, _ = SAMPLERS[kind]
    study = optuna.create_study(storage=url, sampler=make())
    summary = run(study, objective, n_trials)
    assert summary.stopped_by == "study.stop()"
    assert visited(study) == Counter(POINTS)


@pytest.mark.parametrize("kind", quick_are(["BruteForce"], ["Grid", "BruteForce"]))
def test_a_grid_with_two_workers_misses_no_point(url: str, kind: str) -> None:
    make, objective, _ = SAMPLERS[kind]
    study = optuna.create_study(storage=url, sampler=make())
    summary = run(study, objective, None, workers=2)
    assert summary.stopped_by == "study.stop()"
    assert set(visited(study)) == POINTS
    assert summary.trials["RUNNING"] == 0


@pytest.mark.parametrize("kind", quick_are(["Grid"], ["Grid", "BruteForce"]))
def test_an_exhausted_grid_gets_no_more_trials(url: str, kind: str) -> None:
    make, objective, _ = SAMPLERS[kind]
    study = optuna.create_study(storage=url, study_name="grid", sampler=make())
    run(study, objective, None)
    for n_trials in (None, 50):
        study = optuna.load_study(storage=url, study_name="grid", sampler=make())
        run(study, objective, n_trials)
        assert visited(study) == Counter(POINTS)


def test_interrupted_grid_is_resumed(url: str) -> None:
    make, objective, _ = SAMPLERS["Grid"]
    study = optuna.create_study(storage=url, study_name="grid", sampler=make())
    run(study, objective, 2)
    assert len(study.trials) == 2
    study = optuna.load_study(storage=url, study_name="grid", sampler=make())
    run(study, objective, None)
    assert visited(study) == Counter(POINTS)


def test_sampler_that_raises_after_a_trial_does_not_end_the_run(url: str) -> None:
    """Optuna's grid does so for an enqueued trial when one point is left."""
    make, objective, _ = SAMPLERS["Grid"]
    study = optuna.create_study(storage=url, sampler=make())
    run(study, objective, 5)
    study.enqueue_trial({"x": 0, "c": "a"})
    run(study, objective, None)
    assert set(visited(study)) == POINTS
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert len(study.trials) == 7


# Seeds.

SEEDED = {
    "Random": lambda: samplers.RandomSampler(seed=7),
    "TPE": lambda: samplers.TPESampler(seed=7, n_startup_trials=2),
}


def drawn(study: optuna.Study) -> list[float]:
    return [trial.params["x"] for trial in study.trials]


def two_processes(url: str, kind: str, name: str) -> list[float]:
    """Return the samples of three trials, and of three more in a second process."""
    for n_trials in (3, 6):
        sampler = SEEDED[kind]()
        study = optuna.create_study(
            storage=url, study_name=name, sampler=sampler, load_if_exists=True
        )
        run(study, numeric, n_trials)
    return drawn(study)


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick_are(["TPE"], SEEDED))
def test_a_seeded_sampler_does_not_repeat_itself_after_a_restart(url: str, kind: str) -> None:
    one = two_processes(url, kind, "one")
    assert len(set(one)) == 6
    assert two_processes(url, kind, "other") == one  # and identical histories go on identically


@pytest.mark.slow
@pytest.mark.parametrize("kind", a_few([*SEEDED][::-1]))
def test_same_sampler_object_continues(url: str, kind: str) -> None:
    def history(name: str) -> list[float]:
        study = optuna.create_study(storage=url, study_name=name, sampler=SEEDED[kind]())
        for n_trials in (2, 4):
            run(study, numeric, n_trials)
        return drawn(study)

    one = history("one")
    assert len(set(one)) == 4
    assert history("other") == one


@pytest.mark.parametrize("kind", a_few([*SEEDED]))
def test_single_worker_samples_as_optuna_does(url: str, kind: str) -> None:
    study = optuna.create_study(storage=url, sampler=SEEDED[kind]())
    run(study, numeric, 5)
    alone = optuna.create_study(sampler=SEEDED[kind]())
    alone.optimize(numeric, n_trials=5)
    assert drawn(study) == drawn(alone)
    assert [trial.value for trial in study.trials] == [trial.value for trial in alone.trials]


# Torch.

SCRIPT = """
import sys, optuna, supermax
assert "torch" not in sys.modules
def objective(trial):
    import torch
    trial.report(1.0, 0)
    trial.should_prune()
    return trial.suggest_float("x", 0, 1) + trial.relative_params.get("x", 0)
study = optuna.create_study(storage="URL", sampler=optuna.samplers.TPESampler(n_startup_trials=1))
supermax.optimize(study, objective, n_trials=2, reuse_cells=True)
assert study.best_value is not None
assert "torch" not in sys.modules, "torch is in the coordinator"
"""


@pytest.mark.slow
def test_the_coordinator_never_imports_torch(url: str) -> None:
    script = SCRIPT.replace("URL", url)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
