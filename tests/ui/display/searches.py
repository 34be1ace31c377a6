"""A search that tests look at from outside: python -m tests.ui.display.searches URL MARKS N_TRIALS

Its first two trials end by themselves, the others when there is a file MARKS/go.
"""

from __future__ import annotations

import contextlib
import fcntl
import sys
import termios
import time
from pathlib import Path
from typing import Any

import optuna

import supermax

optuna.logging.set_verbosity(optuna.logging.ERROR)


def main(url: str, marks: str, n_trials: str) -> None:
    folder = Path(marks)
    with contextlib.suppress(OSError):  # no terminal: that is fine too
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C is for us

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", -10, 10)
        trial.note(encoder="bert-base-uncased", epochs=30)
        step = 0
        while step < 3 or (trial.number > 1 and not (folder / "go").exists()):
            step += 1
            trial.note(epoch=step % 30 + 0.5, samples_per_second=812.0, loss=1 / step)
            trial.report(x / step, step)
            time.sleep(0.03)
        return float(x)

    study = optuna.create_study(storage=url, study_name="watched", load_if_exists=True)
    summary = supermax.optimize(study, objective, n_trials=int(n_trials), workers=2)
    print(f"program: {summary.stopped_by}")


if __name__ == "__main__":
    main(*sys.argv[1:])
