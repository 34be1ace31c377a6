"""Whole trials in a search: each contender in a separate process, timed from its start.

trials() ──▶ speed_searches.py: import, search ──▶ summarised() ──▶ its line
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.study import Study
from speed_tasks import HERE, REFERENCE, Keep, Line, cells_of

BARE, BASELINE = "Optuna, bare loop", "fp32 baseline"
SHORT = {"Trainer": REFERENCE, "bare": BARE, "baseline": BASELINE}
"""Names of contenders on the command line."""
BASELINE_WORKERS = 3
BASELINE_SECONDS = 300.0
"""Time limit of a baseline worker; the duration of an unfinished trial is extrapolated."""
UNTIMED = 2
"""Trials before the timed ones, so that start-up is not timed."""


def trials(
    name: str,
    contenders: Sequence[str],
    numbers: dict[str, int],
    keep: Keep,
    no_cudnn: bool = False,
) -> None:
    """Run the searches, Trainer's always first. `numbers`: trials by contender."""
    run = f"{time.time():.0f}"
    for contender in dict.fromkeys([REFERENCE, *contenders]):
        line = {"part": "trials", "run": run, "task": name, "contender": contender}
        line |= {"attention": "no cuDNN"} if no_cudnn else {}
        keep(line | _searched(name, contender, numbers[contender], no_cudnn))


def how_many(contender: str, trials: int, reference: int, baseline: int) -> int:
    """Return the number of trials of a contender: whole rounds of its workers, at least three.

    One round is enough for the baseline, whose workers are warm before their first trial.
    """
    if contender in SHORT.values():
        each, wanted = (BASELINE_WORKERS, baseline) if contender == BASELINE else (1, reference)
    else:
        cells = cells_of(contender)
        each, wanted = cells.count if cells else 1, trials
    least = 3 * each if contender != BASELINE else each
    return -(-max(wanted, least) // each) * each


def _searched(name: str, contender: str, number: int, no_cudnn: bool) -> Line:
    since = time.time()
    script = str(HERE / "speed_searches.py")
    command = [sys.executable, script, contender, name, str(number), str(since)]
    command += ["--no-cudnn"] * no_cudnn
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"trials"')]
    if done.returncode or not lines:
        errors = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        return {"failed": errors[-1][:300]}
    found: Line = json.loads(lines[-1])
    return found


@dataclass(frozen=True)
class Finished:
    """A finished trial: its hyperparameters, its metric, and the time of its end."""

    rate: float
    dropout: float
    value: float
    at: float


def finished_of(study: Study, rate: str = "rate", dropout: str = "dropout") -> list[Finished]:
    """Return the completed trials of a study. `rate`, `dropout`: its names for these."""
    return [
        Finished(t.params[rate], t.params[dropout], t.value, t.datetime_complete.timestamp())
        for t in study.trials
        if t.state.name == "COMPLETE" and t.value is not None and t.datetime_complete
    ]


def summarised(
    trials: Sequence[Finished],
    since: float,
    together: int,
    per_trial: float | None = None,
    **more: object,
) -> Line:
    """Return the line of a search. `per_trial`: seconds; None: from the ends of trials."""
    ends = sorted(trial.at for trial in trials)
    return {
        "trials": len(ends),
        "whole": time.time() - since,
        "before_first": ends[0] - since,
        "per_trial": _interval(ends, together) if per_trial is None else per_trial,
        "metric": statistics.median(trial.value for trial in trials),
        "best": max(trial.value for trial in trials),
        "together": together,
        "reached": sorted([trial.rate, trial.dropout, trial.value] for trial in trials),
        **more,
    }


def _interval(ends: Sequence[float], together: int) -> float:
    """Return seconds between ends of trials; the first round of all cells does not count."""
    before = max(UNTIMED, together)
    return (ends[-1] - ends[before - 1]) / (len(ends) - before)
