"""Programs that tests run, kill and run again: python -m tests.engine.programs NAME URL ..."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import optuna

import supermax

optuna.logging.set_verbosity(optuna.logging.ERROR)


def value_of(x: float, choice: str, depth: int) -> float:
    return (x - 2) ** 2 + depth + len(choice)


def short_trial(trial: Any) -> float:
    """Report a few times and return a value that depends on the parameters alone."""
    x = trial.suggest_float("x", -10, 10)
    choice = trial.suggest_categorical("choice", ["a", "bb", "ccc"])
    depth = trial.suggest_int("depth", 1, 4)
    for step in range(3):
        time.sleep(0.01)
        trial.report(value_of(x, choice, depth) + 3 - step, step)
    return value_of(x, choice, depth)


def chaos(url: str, n_trials: str) -> None:
    sampler = optuna.samplers.TPESampler(n_startup_trials=5)
    study = optuna.create_study(
        storage=url, study_name="chaos", load_if_exists=True, sampler=sampler
    )
    supermax.optimize(study, short_trial, n_trials=int(n_trials), workers=3, progress=False)


def staged(url: str, marks: str, n_trials: str, name: str = "staged") -> None:
    """Run trials that mark each step in the folder `marks`, and wait there for a file `go`."""
    folder = Path(marks)

    def objective(trial: Any) -> float:
        done = trial.checkpoint_dir / "step"
        first = int(done.read_text()) + 1 if done.exists() else 0
        x = trial.suggest_float("x", -10, 10)
        for step in range(first, 3):
            trial.report(x + step, step)
            mark = folder / f"{trial.number}-{trial.attempt}-{step}"
            for path, text in ((done, str(step)), (mark, json.dumps({"pid": os.getpid()}))):
                spare = trial.checkpoint_dir / "spare"
                spare.write_text(text)
                spare.replace(path)  # whoever sees it sees all of it
            while step == 1 and not (folder / "go").exists():
                if trial.stop_requested:
                    (folder / "stopping").touch()
                time.sleep(0.01)
        y = trial.suggest_float("y", -10, 10)
        return x + y

    study = optuna.create_study(storage=url, study_name=name, load_if_exists=True)
    wide = optuna.distributions.FloatDistribution(-10, 10)
    for known in range(len(study.trials), 12):  # enough for TPE to draw x and y together
        params = {"x": known / 2, "y": -known / 2}
        space = {"x": wide, "y": wide}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=0.0))
    summary = supermax.optimize(
        study, objective, n_trials=int(n_trials), workers=2, progress=False
    )
    print(summary.stopped_by)


def with_checkpoint(trial: Any) -> float:
    """Do as short_trial, continue from a checkpoint, and append a line to the file MARKS at the
    end of each attempt."""
    x = trial.suggest_float("x", -10, 10)
    choice = trial.suggest_categorical("choice", ["a", "bb", "ccc"])
    depth = trial.suggest_int("depth", 1, 4)
    if os.environ.get("CRASH"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if x > float(os.environ.get("LIMIT", "inf")):
        raise ValueError("x is too large")
    saved = trial.checkpoint_dir / "step"
    first = int(saved.read_text()) + 1 if saved.exists() else 0
    for step in range(first, 3):
        time.sleep(float(os.environ.get("PACE", "0.01")))
        trial.report(value_of(x, choice, depth) + 3 - step, step)
        spare = trial.checkpoint_dir / "spare"
        spare.write_text(str(step))
        spare.replace(saved)
    if marks := os.environ.get("MARKS"):
        line = json.dumps([trial.number, trial.attempt, first, os.getpid()]) + "\n"
        with Path(marks).open("a") as file:
            file.write(line)
    return value_of(x, choice, depth)


def shared(url: str, n_trials: str, run_dir: str, lease: str, checkpoints: str = "") -> None:
    """Run trials beside other runs on the same study; HOST: the name of this machine."""
    if host := os.environ.get("HOST"):
        platform.node = lambda: host
    study = optuna.create_study(storage=url, study_name="shared", load_if_exists=True)
    summary = supermax.optimize(
        study,
        with_checkpoint,
        n_trials=int(n_trials),
        workers=2,
        run_dir=run_dir,
        lease=float(lease),
        checkpoints=checkpoints or None,
        progress=lambda event: print(event, flush=True),
    )
    print("told", summary.told)


def nine_epochs(trial: Any) -> float:
    """Continue from a checkpoint, and mark each epoch that was trained in the file MARKS."""
    x = trial.suggest_float("x", -10, 10)
    saved = trial.checkpoint_dir / "epoch"
    first = int(saved.read_text()) if saved.exists() else 0
    if first:  # an attempt may have been killed before it reported the epoch
        trial.report(loss_after(x, first), first)
    for epoch in range(first + 1, 10):
        time.sleep(float(os.environ.get("PACE", "0")))
        if marks := os.environ.get("MARKS"):
            with Path(marks).open("a") as file:
                file.write(f"{trial.number} {epoch}\n")
        spare = trial.checkpoint_dir / "spare"
        spare.write_text(str(epoch))
        spare.replace(saved)
        trial.report(loss_after(x, epoch), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss_after(x, 9)


def loss_after(x: float, epoch: int) -> float:
    return (x - 2) ** 2 + 9 - epoch


def promotion(url: str, n_trials: str, run_dir: str = "", lease: str = "120") -> None:
    study = optuna.create_study(
        storage=url,
        study_name="chaos",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(),
    )
    pruner = supermax.Promotion(max_reports=9, min_agreement=-1)
    supermax.optimize(
        study,
        nine_epochs,
        n_trials=int(n_trials),
        workers=3,
        run_dir=run_dir or None,
        lease=float(lease),
        pruner=pruner,
        progress=False,
    )


if __name__ == "__main__":
    programs = {"chaos": chaos, "staged": staged, "shared": shared, "promotion": promotion}
    programs[sys.argv[1]](*sys.argv[2:])
