"""One process of the throughput benchmark: a run of Supermax, or Optuna's own loop.

python benchmarks/scale_runs.py supermax URL STUDY TRIALS WORKERS RUN_DIR
python benchmarks/scale_runs.py optuna URL STUDY TRIALS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import optuna

import supermax

SECONDS = 1.0


def sleeping(trial: optuna.Trial) -> float:
    x, y = trial.suggest_float("x", -1, 1), trial.suggest_float("y", -1, 1)
    time.sleep(SECONDS)
    return x * x + y * y


def run_supermax(url: str, study: str, trials: str, workers: str, run_dir: str) -> None:
    """Run until the study has `trials` finished trials, with those of all other runs."""
    supermax.optimize(
        optuna.load_study(storage=url, study_name=study),
        sleeping,
        n_trials=int(trials),
        workers=int(workers),
        reuse_cells=True,
        run_dir=run_dir,
        progress=False,
    )


def run_optuna(url: str, study: str, trials: str) -> None:
    """Run `trials` trials in this process."""
    optuna.load_study(storage=url, study_name=study).optimize(sleeping, n_trials=int(trials))


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    runs: dict[str, Callable[..., None]] = {"supermax": run_supermax, "optuna": run_optuna}
    runs[sys.argv[1]](*sys.argv[2:])
