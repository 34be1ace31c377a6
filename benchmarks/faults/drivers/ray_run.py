"""Ray Tune with OptunaSearch, retries of failed trials and `Tuner.restore`.

As its guide to fault tolerance recommends: `max_failures`, a storage path, and a driver that
restores the experiment if there is one.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch
from stored import Stored, drive
from work import read_plan, run_trial

NAME = "faults"


def trainable(config: dict[str, Any], folder: Path) -> None:
    def report(value: float, step: int) -> None:
        tune.report({"value": value, "step": step})

    value = run_trial(folder, str(tune.get_context().get_trial_id()), report)
    tune.report({"value": value, "ended": True})


def run(folder: Path, workers: int) -> None:
    ray.init(num_cpus=workers, include_dashboard=False, logging_level=logging.ERROR)
    plan = read_plan(folder)
    path = str(plan.home / NAME)
    made = tune.with_resources(partial(trainable, folder=folder), {"cpu": 1})
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=made, resume_errored=True)
    else:
        tuner = tune.Tuner(
            made,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(
                metric="value", mode="min", num_samples=plan.trials,
                max_concurrent_trials=workers, search_alg=OptunaSearch(),
            ),
            run_config=tune.RunConfig(
                name=NAME, storage_path=str(plan.home), verbose=1,
                failure_config=tune.FailureConfig(max_failures=3),
            ),
        )  # fmt: skip
    tuner.fit()


def report(folder: Path) -> Stored:
    path = read_plan(folder).home / NAME
    if not tune.Tuner.can_restore(str(path)):
        return Stored()
    trials = tune.ExperimentAnalysis(str(path)).trials or []
    values = {
        str(trial.trial_id): float(trial.last_result["value"])
        for trial in trials
        if trial.status == "TERMINATED" and trial.last_result.get("ended")
    }
    return Stored(values, sum(trial.status == "RUNNING" for trial in trials))


if __name__ == "__main__":
    drive(run, report)
