"""Compare searches on recorded fine-tuning curves that differ in the ranges of their space.

    python benchmarks/search/ranges.py

Each search begins with the defaults and has the budget and workers of run.py. Prints the mean
regret over tasks and seeds of the tuning half, after a quarter, half and all of the budget, and
the difference at the end to the recorded ranges, with its standard error over tasks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import families
import numpy as np
from contenders import Setting, search
from measure import Run, improvements_of, tasks_of
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from run import Item, seed_of
from trainings import RECORDING

_RATES = {"optim.lr": FloatDistribution(1e-5, 2e-4, log=True)}
_BATCHES = {"train.effective_batch": CategoricalDistribution([16, 32])}
_DECAY = {"optim.layer_decay": FloatDistribution(0.85, 1.0)}
RANGES: dict[str, Mapping[str, BaseDistribution]] = {
    "as recorded": {},
    "learning rates up to 2e-4": _RATES,
    "batches 16 and 32": _BATCHES,
    "preset standard": {**_RATES, **_BATCHES, **_DECAY},
    "preset standard, learning rates up to 5e-4": {**_BATCHES, **_DECAY},
    "preset standard, batches up to 64": {**_RATES, **_DECAY},
}
SHARES = (0.25, 0.5, 1.0)
_CONTENDER, _WORKERS, _TRAININGS = "supermax-defaults", 4, 30


def regrets(task: str, ranges: Mapping[str, BaseDistribution], seed: int) -> list[float]:
    """Return the regret of one search after each share of its budget."""
    table = families.read(task, families.Sources(tweeteval=RECORDING))
    table = replace(table, space={**table.space, **ranges})
    item = Item(_CONTENDER, task, seed, _WORKERS, _TRAININGS)
    budget = _TRAININGS * table.epochs
    found = search(_CONTENDER, table, Setting(seed_of(item), budget, _WORKERS))
    run = Run(
        *item, budget=budget, trials=found.trials, seconds=0.0,
        improvements=improvements_of(found, table),
    )  # fmt: skip
    return [run.regret_at(share * budget) for share in SHARES]


def difference(by_task: np.ndarray) -> str:
    """Return the mean difference of the tasks, with its standard error."""
    return f"{by_task.mean():+.3f} ({by_task.std(ddof=1) / np.sqrt(len(by_task)):.3f})"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="searches of each task")
    options = parser.parse_args(arguments)
    names = families.names(families.Sources(tweeteval=RECORDING))
    tasks = tasks_of("tuning", names, reason=None, log=Path())
    print(f"{'ranges':45}" + "".join(f"{share:>8.0%}" for share in SHARES) + "    difference")
    recorded = None
    for title, ranges in RANGES.items():
        each = [[regrets(task, ranges, s) for s in range(options.seeds)] for task in tasks]
        found = np.mean(each, axis=1)  # by task and share
        recorded = found if recorded is None else recorded
        cells = "".join(f"{regret:8.3f}" for regret in found.mean(axis=0))
        print(f"{title:45}{cells}    {difference(found[:, -1] - recorded[:, -1])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
