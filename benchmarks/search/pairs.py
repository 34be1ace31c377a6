"""Compare contenders in pairs: the same task and seed.

    python benchmarks/search/pairs.py RESULTS.jsonl supermax:optuna-no-pruning supermax:optuna

Reads the results of run.py. For each pair, over all tasks and for each family: searches in which
the first one ends with the lower and with the higher regret (the rest are ties), the mean
difference of the regrets at the end with its standard error over tasks, and the ratio of the
epochs until a regret of 0.05.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from measure import LEVELS, Run, ratio
from run import read_runs


class Pair(NamedTuple):
    """First contender against the second, on the searches that both have."""

    searches: int
    better: int
    worse: int
    mean: float
    """Difference of the regrets at the end, first less second: mean of the tasks' means."""
    error: float
    """Standard error of `mean`."""


def pair_of(first: Sequence[Run], second: Sequence[Run]) -> Pair:
    other = {(run.task, run.seed): run.final for run in second}
    differences: dict[str, list[float]] = defaultdict(list)
    for run in first:
        if (run.task, run.seed) in other:
            differences[run.task].append(run.final - other[run.task, run.seed])
    every = np.concatenate(list(differences.values()))
    means = np.array([np.mean(found) for found in differences.values()])
    error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else np.nan
    return Pair(len(every), int((every < 0).sum()), int((every > 0).sum()), means.mean(), error)


def rows(runs: Sequence[Run], pairs: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    yield ["pair", "tasks", "searches", "better", "worse", "difference (error)",
           f"epochs to {LEVELS[0]:g}"]  # fmt: skip
    families = list(dict.fromkeys(run.task.split("-")[0] for run in runs))
    for names in pairs:
        for family in ("", *families):
            own = [run for run in runs if run.task.startswith(family)]
            first, second = ([run for run in own if run.contender == name] for name in names)
            if not {(r.task, r.seed) for r in first} & {(r.task, r.seed) for r in second}:
                continue
            pair, cost = pair_of(first, second), ratio(first, second, LEVELS[0])
            yield [" against ".join(names), family or "all", str(pair.searches), str(pair.better),
                   str(pair.worse), f"{pair.mean:+.3f} ({pair.error:.3f})",
                   f"{cost.mean:.2f} [{cost.low:.2f}, {cost.high:.2f}]"]  # fmt: skip


def _pair(entry: str) -> tuple[str, str]:
    first, colon, second = entry.partition(":")
    if not (first and colon and second):
        raise argparse.ArgumentTypeError(f"{entry!r} is not FIRST:SECOND.")
    return first, second


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("pairs", nargs="+", type=_pair, metavar="FIRST:SECOND")
    options = parser.parse_args(arguments)
    for row in rows(read_runs(options.results), options.pairs):
        print(f"{row[0]:54}" + "".join(f"{cell:>20}" for cell in row[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
