"""Syne Tune: its local backend with random search, resumed from the tuner that it saves."""

from __future__ import annotations

import os
from pathlib import Path

from stored import Stored, drive
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend import LocalBackend
from syne_tune.backend.trial_status import Status
from syne_tune.config_space import uniform
from syne_tune.optimizer.baselines import RandomSearch
from work import read_plan

NAME = "faults"


def run(folder: Path, workers: int) -> None:
    plan = read_plan(folder)
    os.environ["SYNETUNE_FOLDER"] = str(plan.home)
    saved = _saved(plan.home)
    if saved is not None:
        tuner = Tuner.load(str(saved))
    else:
        space = {"x": uniform(0, 1), "folder": str(folder)}
        script = Path(__file__).with_name("syne_tune_trial.py")
        tuner = Tuner(
            trial_backend=LocalBackend(entry_point=str(script)),
            scheduler=RandomSearch(space, metric="value", mode="min"),
            stop_criterion=StoppingCriterion(max_num_trials_completed=plan.trials),
            n_workers=workers,
            max_failures=1000,
            tuner_name=NAME,
            sleep_time=0.2,
            results_update_interval=5,
        )
    tuner.run()


def report(folder: Path) -> Stored:
    home = read_plan(folder).home
    os.environ["SYNETUNE_FOLDER"] = str(home)
    saved = _saved(home)
    if saved is None:
        return Stored()
    status = Tuner.load(str(saved)).tuning_status
    rows = status.trial_rows
    values = {
        str(number): float(rows[number]["value"])
        for number, state in status.last_trial_status_seen.items()
        if state == Status.completed and rows[number].get("ended")
    }
    running = sum(s == Status.in_progress for s in status.last_trial_status_seen.values())
    return Stored(values, running)


def _saved(home: Path) -> Path | None:
    """Return the folder of the tuner that was saved last."""
    found = list(home.rglob("tuner.dill"))
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


if __name__ == "__main__":
    drive(run, report)
