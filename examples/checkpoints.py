"""An objective that resumes from its checkpoint after a kill, a crash or an interruption.

Run it, press Ctrl-C or kill -9 it, and run it again. The first attempt of every third trial
crashes on purpose.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import optuna

import supermax

EPOCHS = 20


def objective(trial: Any) -> float:
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    data = np.random.default_rng(0).normal(size=(200, 5))
    target = data @ np.arange(5.0)
    weights, epoch, loss = np.zeros(5), 0, float("inf")
    saved = trial.checkpoint_dir / "state.json"
    if saved.exists():  # a second attempt
        state = json.loads(saved.read_text())
        weights, epoch, loss = np.array(state["weights"]), state["epoch"], state["loss"]
        print(f"attempt {trial.attempt} resumes after epoch {epoch}")
    while epoch < EPOCHS:
        error = data @ weights - target
        weights = weights - rate * data.T @ error / len(data)
        epoch, loss = epoch + 1, float(np.mean(error**2))
        state = {"weights": weights.tolist(), "epoch": epoch, "loss": loss}
        saved.with_suffix(".new").write_text(json.dumps(state))
        saved.with_suffix(".new").replace(saved)  # atomic
        trial.report(loss, epoch)
        if trial.number % 3 == 0 and trial.attempt == 1 and epoch == EPOCHS // 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage="sqlite:///checkpoints.db", study_name="checkpoints", load_if_exists=True
    )
    print(supermax.optimize(study, objective, n_trials=15, workers=2))
    print(f"Best: {study.best_value:.6f} with {study.best_params}")
