"""Supermax: `supermax.optimize` on a storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from stored import Stored, drive
from work import read_plan, run_trial

import supermax


def run(folder: Path, workers: int) -> None:
    def objective(trial: Any) -> float:
        trial.suggest_float("x", 0, 1)
        return run_trial(folder, str(trial.number), trial.report)

    supermax.optimize(
        _study(folder), objective, read_plan(folder).trials, workers=workers, stall_timeout=15,
        run_dir=read_plan(folder).home / "run",
    )  # fmt: skip


def report(folder: Path) -> Stored:
    trials = _study(folder).get_trials(deepcopy=False)
    values = {
        str(t.number): t.value
        for t in trials
        if t.value is not None and t.state.name == "COMPLETE"
    }
    return Stored(values, sum(t.state.name == "RUNNING" for t in trials))


def _study(folder: Path) -> optuna.Study:
    return optuna.create_study(
        storage=read_plan(folder).url, study_name="faults", load_if_exists=True
    )


if __name__ == "__main__":
    drive(run, report)
