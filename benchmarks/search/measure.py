"""Measures of searches on recorded curves, and the split of the tasks.

    final      normalised regret at the end of the budget: 0 best, 1 median configuration
    ratio      epochs until a regret is reached, relative to the baseline; geometric mean
    rank       mean rank by regret at the end, among the contenders
    worst      task with the highest median regret
    curve      regret against epochs, quartiles over tasks and seeds

A search that misses a regret counts as reaching it when the budget ends (censored). So a ratio is
too low for a contender with more misses than the baseline, and too high for one with fewer; where
both miss, it is 1. The number of misses stands beside each ratio.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import rankdata  # type: ignore[import-untyped]
from simulate import Replay
from tables import Table

Half = Literal["tuning", "reporting"]
LEVELS = (0.05, 0.01)
"""Regrets whose cost in epochs is compared."""
_RESAMPLES = 2000


def data_of(task: str) -> str:
    """Return the task without its encoder: those of TweetEval have two tables of the same data."""
    return task.rsplit("-", 1)[0] if task.startswith("tweeteval-") else task


def half_of(task: str) -> Half:
    """Return the half of a task: a hash of its name decides. Settings of Supermax are chosen on
    the tuning half only. Both encoders of a task are in one half."""
    return "reporting" if hashlib.sha256(data_of(task).encode()).digest()[0] % 2 else "tuning"


def tasks_of(half: Half, tasks: Iterable[str], *, reason: str | None, log: Path) -> list[str]:
    """Return the tasks of a half. The reporting half needs a reason, which is logged."""
    if half == "reporting":
        if not reason:
            raise ValueError("The reporting half is for final figures: give a reason to open it.")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{now} {reason}\n")
    return [task for task in tasks if half_of(task) == half]


@dataclass(frozen=True)
class Run:
    """Result of one search. As a line of JSON, it is what run.py writes."""

    contender: str
    task: str
    seed: int
    workers: int
    trainings: int
    """Budget, in full trainings."""
    budget: int
    """Budget, in epochs."""
    trials: int
    improvements: list[tuple[int, float, float]]
    """Epochs spent by all workers, simulated seconds, and regret whenever it got lower."""
    seconds: float
    """CPU time of this process, without that of a peer."""

    def regret_at(self, epochs: float) -> float:
        """Return the lowest regret after so many epochs of all workers."""
        reached = [regret for spent, _, regret in self.improvements if spent <= epochs]
        return reached[-1] if reached else math.inf

    @property
    def final(self) -> float:
        return self.regret_at(self.budget)

    def epochs_until(self, level: float) -> int | None:
        """Return the number of epochs until a regret is reached; None: it is not."""
        return next((spent for spent, _, regret in self.improvements if regret <= level), None)


def improvements_of(replay: Replay, table: Table) -> list[tuple[int, float, float]]:
    """Return each improvement of a search: epochs spent, simulated seconds, regret."""
    found, lowest = [], math.inf
    for spent, epoch in enumerate(replay.epochs, 1):
        if epoch.loss < lowest:
            lowest = epoch.loss
            found.append((spent, epoch.end, table.regret(lowest)))
    return found


class Ratio(NamedTuple):
    """Cost relative to the baseline, geometric mean over tasks and seeds."""

    mean: float
    low: float
    high: float
    """Bootstrap interval, 95 %."""
    misses: int
    baseline_misses: int
    runs: int


def ratio(runs: Sequence[Run], baseline: Sequence[Run], level: float) -> Ratio:
    """Compare the epochs until a regret is reached, on the tasks that both have.

    The bootstrap draws tasks, then seeds of each: a task is one observation of a kind of problem.
    """
    ours, theirs = _log_costs(runs, level), _log_costs(baseline, level)
    tasks = sorted(ours.keys() & theirs.keys())
    mean = np.mean([np.mean(ours[task]) - np.mean(theirs[task]) for task in tasks])
    rng = np.random.default_rng(0)
    differences = np.stack(
        [_resampled_mean(ours[t], rng) - _resampled_mean(theirs[t], rng) for t in tasks]
    )
    drawn = rng.integers(len(tasks), size=differences.shape)
    draws = np.take_along_axis(differences, drawn, axis=0).mean(0)
    low, high = np.quantile(draws, [0.025, 0.975])
    both = [[run for run in side if run.task in tasks] for side in (runs, baseline)]
    misses = [sum(run.epochs_until(level) is None for run in side) for side in both]
    middle, lower, upper = (float(np.exp(x)) for x in (mean, low, high))
    return Ratio(middle, lower, upper, misses[0], misses[1], len(both[0]))


def _resampled_mean(costs: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Return the means of bootstrap samples."""
    means: np.ndarray = rng.choice(costs, (_RESAMPLES, len(costs))).mean(1)
    return means


def _log_costs(runs: Iterable[Run], level: float) -> dict[str, list[float]]:
    """Return the logarithms of the costs of each task. A miss costs the budget."""
    costs = defaultdict(list)
    for run in runs:
        costs[run.task].append(math.log(run.epochs_until(level) or run.budget))
    return costs


def curve(runs: Sequence[Run], shares: Sequence[float]) -> np.ndarray:
    """Return the quartiles of the regret (rows: 25, 50, 75 %) after these shares of the budget."""
    regrets = [[run.regret_at(share * run.budget) for share in shares] for run in runs]
    return np.quantile(regrets, [0.25, 0.5, 0.75], axis=0, method="nearest")


def mean_ranks(by_contender: dict[str, Sequence[Run]]) -> dict[str, float]:
    """Return the mean rank by final regret, over the tasks and seeds that all contenders have."""
    finals = [{(r.task, r.seed): r.final for r in runs} for runs in by_contender.values()]
    shared = sorted(set.intersection(*(set(final) for final in finals)))
    if not shared:
        return dict.fromkeys(by_contender, math.nan)
    table = np.array([[final[key] for final in finals] for key in shared])
    return dict(zip(by_contender, rankdata(table, axis=1).mean(0).tolist(), strict=True))


def worst_task(runs: Sequence[Run]) -> tuple[float, str]:
    """Return the highest median of final regrets of a task, and its name."""
    ordered = sorted(runs, key=lambda run: run.task)
    groups = itertools.groupby(ordered, key=lambda run: run.task)
    return max((float(np.median([run.final for run in group])), task) for task, group in groups)


def summary(runs: Sequence[Run], baseline: str) -> str:
    """Return one table with a row per contender, best mean rank first."""
    by_contender: dict[str, Sequence[Run]] = {
        name: [run for run in runs if run.contender == name]
        for name in dict.fromkeys(run.contender for run in runs)
    }
    ranks, shares = mean_ranks(by_contender), (0.1, 0.25, 0.5, 1.0)
    head = ["contender", "runs", "rank", *(f"regret {share:.0%}" for share in shares)]
    head += ["quartiles at end", *(f"epochs to {level:g} (misses)" for level in LEVELS)]
    rows = [[*head, "worst task"]]
    for name in sorted(by_contender, key=lambda name: ranks[name]):
        own = by_contender[name]
        low, middle, high = curve(own, shares)
        worst, task = worst_task(own)
        cells = [name, f"{len(own)}", f"{ranks[name]:.2f}", *(f"{x:.3f}" for x in middle)]
        cells.append(f"{low[-1]:.3f} {high[-1]:.3f}")
        cells += [_ratio_cell(own, by_contender.get(baseline, ()), level) for level in LEVELS]
        rows.append([*cells, f"{worst:.3f} {task}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _ratio_cell(runs: Sequence[Run], baseline: Sequence[Run], level: float) -> str:
    if not {run.task for run in runs} & {run.task for run in baseline}:
        return "no baseline"
    found = ratio(runs, baseline, level)
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}] ({found.misses}/{found.runs})"
