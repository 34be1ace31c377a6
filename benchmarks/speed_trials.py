"""Whole trials in a search: each contender in a process of its own, timed from that one's start.

trials() ──▶ speed_searches.py: import, search ──▶ summed_up() ──▶ its line
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.study import Study
from speed_tasks import HERE, REFERENCE, Cells, Keep, Line, cells_of

BARE, OLD = "Optuna, bare loop", "old way"
UNPLANNED = "Trainer without cuDNN"
"""Whose kernels of attention are made for one dropout, batch and width: it makes many of them."""
SHORT = {"Trainer": REFERENCE, "bare": BARE, "old": OLD, UNPLANNED: UNPLANNED}
"""How they are asked for."""
OLD_WORKERS = 3
OLD_SECONDS = 300.0
"""That a worker of the old way may train; how long a trial takes is then reckoned."""
BETWEEN = 2
"""Trials before those that count, so that nobody's first start does."""


def trials(name: str, contenders: Sequence[str], numbers: dict[str, int], keep: Keep) -> None:
    """`numbers`: of trials, by contender. Trainer's search comes first, whoever was asked for."""
    run = f"{time.time():.0f}"
    for contender in dict.fromkeys([REFERENCE, *contenders]):
        line = {"part": "trials", "run": run, "task": name, "contender": contender}
        keep(line | _searched(name, contender, numbers[contender]))


def contenders_of(
    words: Sequence[str], cells: Sequence[int], *, mps: bool, compiled: bool
) -> list[str]:
    """By name; "cells" are ours, so many at a time, and with what was asked for on top."""
    ours = [Cells(many) for many in cells]
    ours += [Cells(many, mps=True) for many in cells if mps and many > 1]
    ours += [Cells(many, mps and many > 1, compiled=True) for many in cells if compiled]
    found: list[str] = []
    for word in words:
        found += [one.name for one in ours] if word == "cells" else [SHORT.get(word, word)]
    return found


def how_many(contender: str, trials: int, reference: int, old: int) -> int:
    """Trials of a contender; whole rounds where several go at a time, and three at least, of the
    old way one: its workers are warm before."""
    if contender in SHORT.values():
        each, wanted = (OLD_WORKERS, old) if contender == OLD else (1, reference)
    else:
        cells = cells_of(contender)
        each, wanted = cells.count if cells else 1, trials
    least = 3 * each if contender != OLD else each
    return -(-max(wanted, least) // each) * each


def _searched(name: str, contender: str, number: int) -> Line:
    since = time.time()
    script = str(HERE / "speed_searches.py")
    command = [sys.executable, script, contender, name, str(number), str(since)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"trials"')]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was said"]
        return {"failed": said[-1][:300]}
    found: Line = json.loads(lines[-1])
    return found


@dataclass(frozen=True)
class Ended:
    """A trial that has: what it tried, the metric it reached, and when."""

    rate: float
    dropout: float
    value: float
    at: float


def ended_of(study: Study, rate: str = "rate", dropout: str = "dropout") -> list[Ended]:
    """Those of a study that came to their end. `rate`, `dropout`: what it calls these."""
    return [
        Ended(t.params[rate], t.params[dropout], t.value, t.datetime_complete.timestamp())
        for t in study.trials
        if t.state.name == "COMPLETE" and t.value is not None and t.datetime_complete
    ]


def summed_up(
    trials: Sequence[Ended],
    since: float,
    together: int,
    per_trial: float | None = None,
    **more: Any,
) -> Line:
    """`per_trial`: seconds from one's end to the next's, where they are not to be had from when
    these ended."""
    ends = sorted(trial.at for trial in trials)
    return {
        "trials": len(ends),
        "whole": time.time() - since,
        "before_first": ends[0] - since,
        "per_trial": _apart(ends, together) if per_trial is None else per_trial,
        "metric": statistics.median(trial.value for trial in trials),
        "best": max(trial.value for trial in trials),
        "together": together,
        "reached": sorted([trial.rate, trial.dropout, trial.value] for trial in trials),
        **more,
    }


def _apart(ends: Sequence[float], together: int) -> float:
    """With several at a time, their first round does not count."""
    before = max(BETWEEN, together)
    return (ends[-1] - ends[before - 1]) / (len(ends) - before)
