"""A search over an objective that fails on purpose, in every way, and still finishes.

The objective is Branin's function. Some trials crash, exit, hang, run out of memory, raise or
return NaN; the search continues.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import tempfile
import time
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

import supermax

TRIALS = 60


def crash() -> None:
    """Read address zero: a segmentation fault."""
    ctypes.string_at(0)


def exit_process() -> None:
    """End the process without a result."""
    os._exit(3)


def hang() -> None:
    while True:
        time.sleep(1.0)


def exhaust_memory() -> None:
    """Allocate 16 GiB under a limit of 4 GiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, hard))
    try:
        blocks = [bytes(1 << 28) for _ in range(64)]
        blocks.append(bytes(1 << 62))  # for systems that do not enforce the limit
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def raise_error() -> None:
    raise ValueError("these parameters do not go together")


FAULTS = {5: crash, 10: exit_process, 15: hang, 20: exhaust_memory, 25: raise_error}
PERIOD = 26


def branin(x: float, y: float) -> float:
    bowl = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -5.0, 10.0)
    y = trial.suggest_float("y", 0.0, 15.0)
    offset = {"none": 0.0, "some": 5.0}[trial.suggest_categorical("offset", ["none", "some"])]
    if fault := FAULTS.get(trial.number % PERIOD):
        fault()
    if x < -2.0 and y < 4.0:  # the computation diverges in this corner of the space
        return math.nan
    return branin(x, y) + offset


def counts(title: str, name: str, rows: dict[str, int]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name)
    table.add_column("count", justify="right")
    for label, count in rows.items():
        if count:
            table.add_row(label, str(count))
    return table


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="supermax-") as folder:
        study = optuna.create_study(
            study_name="misbehaving",
            storage=f"sqlite:///{Path(folder) / 'study.db'}",
            sampler=optuna.samplers.TPESampler(seed=1),
        )
        summary = supermax.optimize(
            study, objective, n_trials=TRIALS, workers=2, trial_timeout=2.0
        )
        best = study.best_trial

    console = Console(highlight=False)
    console.print(f"\n{summary}\n")
    console.print(counts("Trials by state", "state", summary.trials))
    console.print(counts("Faults by kind", "fault", summary.faults))
    x, y, offset = (best.params[name] for name in ("x", "y", "offset"))
    console.print(
        f"Best: {best.value:.4f} in trial {best.number}, with x {x:.3f}, y {y:.3f}, "
        f"offset {offset}. The function's minimum is 0.3979."
    )


if __name__ == "__main__":
    main()
