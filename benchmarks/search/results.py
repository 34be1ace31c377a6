"""Print the table of some contenders, on the searches (task and seed) that all of them have.

    python benchmarks/search/results.py RESULTS.jsonl … --contenders optuna smac-hyperband

Reads the results of run.py. Of a search that is in several files, the last one counts. A contender
may be another one in each family: supermax@taskset+supermax@lcbench+supermax-defaults@tweeteval.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from contenders import BASELINE
from measure import LEVELS, Run, ratio, summary
from run import read_runs


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the searches."""
    parser.add_argument("results", type=Path, nargs="+", help="files of run.py")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--budget", type=int, default=30, help="full trainings of a search")
    parser.add_argument("--seeds", type=int, help="use only so many seeds of each task")


def read_results(options: argparse.Namespace) -> list[Run]:
    """Return the searches of all files, each once."""
    runs = [run for file in options.results for run in read_runs(file)]
    last = {(run.contender, run.task, run.seed, run.workers, run.trainings): run for run in runs}
    setting = (options.workers, options.budget)
    seeds = math.inf if options.seeds is None else options.seeds
    chosen = [run for run in last.values() if (run.workers, run.trainings) == setting]
    return [run for run in chosen if run.seed < seeds]


def family_of(run: Run) -> str:
    return run.task.split("-")[0]


def runs_of(runs: Sequence[Run], contender: str) -> list[Run]:
    """Return the runs of a contender, which may be another one in each family."""
    if "@" not in contender:
        return [run for run in runs if run.contender == contender]
    parts = {tuple(part.split("@")) for part in contender.split("+")}
    found = [run for run in runs if (run.contender, family_of(run)) in parts]
    return [replace(run, contender=contender) for run in found]


def shared_runs(runs: Sequence[Run], contenders: Iterable[str]) -> dict[str, list[Run]]:
    """Return the runs of the tasks and seeds that all these contenders have. A contender without
    any run is left out."""
    by_contender = {name: runs_of(runs, name) for name in contenders}
    present = {name: found for name, found in by_contender.items() if found}
    keys = [{(run.task, run.seed) for run in found} for found in present.values()]
    shared = set.intersection(*keys) if keys else set()
    return {
        name: [run for run in found if (run.task, run.seed) in shared]
        for name, found in present.items()
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_results(parser)
    parser.add_argument("--contenders", nargs="+", required=True)
    parser.add_argument("--families", nargs="+", default=["taskset", "lcbench", "tweeteval"])
    parser.add_argument(
        "--worst", type=int, default=0,
        help=f"also print so many tasks with the most epochs relative to {BASELINE}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.worst and BASELINE not in options.contenders:
        parser.error(f"--worst needs the contender {BASELINE}.")
    runs = [run for run in read_results(options) if family_of(run) in options.families]
    shared = shared_runs(runs, options.contenders)
    missing = [name for name in options.contenders if name not in shared]
    if missing or not any(shared.values()):
        sys.exit(
            f"No search is shared by all; without any search: {', '.join(missing) or 'none'}."
        )
    print(summary([run for found in shared.values() for run in found], BASELINE))
    for name in options.contenders if options.worst else ():
        for text in task_rows(shared[name], shared[BASELINE])[: options.worst]:
            print(f"{name}: {text}")


def task_rows(runs: Sequence[Run], baseline: Sequence[Run]) -> list[str]:
    """Return the epochs to 0.05 on each task relative to the baseline, the highest ratio first."""
    tasks = {run.task for run in runs}
    ratios = {t: ratio([r for r in runs if r.task == t], baseline, LEVELS[0]) for t in tasks}
    order = sorted(ratios.items(), key=lambda item: (-item[1].mean, item[0]))
    return [f"{task} {x.mean:.2f} [{x.low:.2f}, {x.high:.2f}]" for task, x in order]


if __name__ == "__main__":
    main(sys.argv[1:])
