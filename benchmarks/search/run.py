"""Compare search methods on recorded curves.

    python benchmarks/search/run.py --taskset DIR --lcbench DIR --tweeteval \\
        --contenders supermax optuna --seeds 10 --budget 30 --workers 4 --half tuning \\
        --into results.jsonl

Each line of the output is one search. A further call runs what is missing and prints the table of
all searches with the same budget and workers. DIR: files of taskset.py and lcbench.py; --lcbench
needs onnxruntime. Contenders: contenders.py. Those of other projects need --python PROJECT=PATH.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import families
from contenders import BASELINE, CONTENDERS, Setting, search
from measure import Run, improvements_of, summary, tasks_of
from peer import python_of
from warm import earlier_task

REPORTING_LOG = Path(__file__).with_name("reporting-half.log")


class Item(NamedTuple):
    """One search."""

    contender: str
    task: str
    seed: int
    workers: int
    trainings: int


def run_item(item: Item, options: argparse.Namespace) -> Run:
    table = families.read(item.task, families.sources_of(options))
    budget = item.trainings * table.epochs
    started = time.process_time()
    other = earlier_task(item.task, item.seed, _tuning(options))
    earlier = families.read(other, families.sources_of(options)) if other else None
    setting = Setting(seed_of(item), budget, item.workers, dict(options.python), earlier)
    result = search(item.contender, table, setting)
    seconds = round(time.process_time() - started, 2)
    improvements = improvements_of(result, table)
    return Run(
        *item,
        budget=budget,
        trials=result.trials,
        improvements=improvements,
        seconds=seconds,
    )


def _tuning(options: argparse.Namespace) -> list[str]:
    names = families.names(families.sources_of(options))
    return tasks_of("tuning", names, reason=None, log=REPORTING_LOG)


def seed_of(item: Item) -> int:
    """Return the seed of a search: another one for each task. With the same one, tasks with equal
    spaces would begin with equal configurations, and would not be independent."""
    return zlib.crc32(f"{item.task} {item.seed}".encode()) % 2**31


def read_runs(file: Path) -> list[Run]:
    """Read the searches that are done. A last line that was cut off is removed. The file may be
    compressed (.gz)."""
    if not file.exists():
        return []
    if file.suffix == ".gz":
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        return [Run(**json.loads(line)) for line in lines]
    text = file.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text, encoding="utf-8")
    return [Run(**json.loads(line)) for line in text.splitlines()]


def items(options: argparse.Namespace) -> list[Item]:
    """Return the searches, seeds outermost: an interrupted comparison covers all tasks."""
    names = families.names(families.sources_of(options))
    tasks = tasks_of(options.half, names, reason=options.open_reporting_half, log=REPORTING_LOG)
    return [
        Item(contender, task, seed, options.workers, options.budget)
        for seed in range(options.seeds)
        for task in tasks[:: options.every]
        for contender in options.contenders
    ]


def _item_of(run: Run) -> Item:
    return Item(run.contender, run.task, run.seed, run.workers, run.trainings)


def _results(todo: list[Item], options: argparse.Namespace) -> Iterator[Run]:
    if options.jobs == 1:
        yield from (run_item(item, options) for item in todo)
        return
    pool = ProcessPoolExecutor(options.jobs)
    try:
        for done in as_completed([pool.submit(run_item, item, options) for item in todo]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> None:
    options = _options()
    wanted = items(options)
    done = {_item_of(run) for run in read_runs(options.into)}
    todo = [item for item in wanted if item not in done]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} searches are done.", flush=True)
    deadline = time.monotonic() + options.seconds if options.seconds else None
    with options.into.open("a", encoding="utf-8") as out:
        for run in _results(todo, options):
            out.write(json.dumps(asdict(run)) + "\n")
            out.flush()
            if deadline is not None and time.monotonic() > deadline:
                print("Stopped after --seconds; call again to go on.")
                break
    shown = {item[1:] for item in wanted}
    contenders = set(options.contenders)
    runs = [r for r in read_runs(options.into) if _item_of(r)[1:] in shown]
    print(summary([run for run in runs if run.contender in contenders], BASELINE))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    families.add_sources(parser)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, required=True)
    parser.add_argument("--seeds", type=int, default=5, help="searches of each task")
    parser.add_argument("--budget", type=int, default=30, help="full trainings of a search")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--half", choices=["tuning", "reporting"], default="tuning")
    parser.add_argument(
        "--open-reporting-half", metavar="REASON", help="needed by --half reporting; is logged"
    )
    parser.add_argument("--every", type=int, default=1, help="take every so many-th task")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="start no search after so long")
    parser.add_argument("--into", type=Path, required=True, help="file of results, JSON lines")
    parser.add_argument(
        "--python", action="append", default=[], type=python_of, metavar="PROJECT=PATH"
    )
    options = parser.parse_args()
    if not any(families.sources_of(options)):
        sys.exit("Give --taskset, --lcbench, --tweeteval or several of them.")
    if options.half == "reporting" and not options.open_reporting_half:
        sys.exit("--half reporting needs --open-reporting-half with a reason.")
    return options


if __name__ == "__main__":
    main()
