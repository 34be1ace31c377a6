"""Start-up and overhead of trials: a cold process, and a warm cell.

    start() ──▶ cold processes ──▶ seconds to the first step
            └─▶ one cell ──▶ warm first steps, overhead of a trial

As a program this is the cold process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import torch
from speed_tasks import (
    DEVICE,
    EPOCHS,
    TASKS,
    Keep,
    Line,
    Task,
    config_of,
    corpus_of,
    execution,
    synchronize,
    validation_of,
)

from supermax.training.data.examples import Corpus
from supermax.training.loop import train, train_without_validation
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import order
from supermax.training.steps.executors import EpochUpdates

WARM = 5
"""Number of warm starts, of which the median counts."""


def start(name: str, keep: Keep) -> None:
    line = {"part": "start", "run": f"{time.time():.0f}", "task": name}
    with tempfile.TemporaryDirectory() as folder:
        for contender in ("cold, nothing kept", "cold, tokens kept"):
            keep(line | {"contender": contender} | _cold(name, Path(folder)))
        keep(line | {"contender": "warm"} | warm(TASKS[name], Path(folder)))
        keep(line | {"contender": "overhead"} | overhead(TASKS[name], Path(folder)))


# A cold process.


def _cold(name: str, folder: Path) -> Line:
    since = time.time()
    command = [sys.executable, str(Path(__file__)), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300]}
    times: Line = json.loads(done.stdout.splitlines()[-1])
    return {
        "imported": times["imported"] - since,
        "prepared": times["prepared"] - since,
        "first_step": times["stepped"] - since,
    }


def first_step(prepared: Prepared) -> None:
    """Make the first update as the loop does, and wait for the device."""
    size = prepared.config.train.effective_batch
    batches = order(prepared.train.lengths, size, prepared.seed, 0)
    factors = [prepared.schedule(update) for update in range(len(batches))]
    prepared.model.train()
    prepared.executor.begin(EpochUpdates(batches, factors), 0)
    prepared.executor.take(0)
    synchronize()


def made(
    what: Task, corpus: Corpus, folder: Path, epochs: int = EPOCHS, dropout: float = 0.1
) -> Prepared:
    return prepare(
        config_of(what, epochs, dropout=dropout),
        corpus,
        validation_of(corpus),
        cache=folder,
        execution=execution(captured=True),
    )


# A warm cell.


def warm(what: Task, folder: Path) -> Line:
    """Return seconds to prepare later trials of a process and to make their first step.

    The first step includes its capture.
    """
    corpus = corpus_of(what)
    first_step(made(what, corpus, folder))
    prepared, stepped = [], []
    for _ in range(WARM):
        tidy()
        started = time.perf_counter()
        trial = made(what, corpus, folder)
        prepared.append(time.perf_counter() - started)
        first_step(trial)
        stepped.append(time.perf_counter() - started)
        del trial
    return {
        "prepared": statistics.median(prepared),
        "first_step": statistics.median(stepped),
        "slowest": max(stepped),
    }


def overhead(what: Task, folder: Path) -> Line:
    """Return the seconds of a trial outside its steps: preparation, capture, evaluation.

    The second trial is measured: the first one imports modules for evaluation.
    """
    corpus = corpus_of(what)
    for _ in range(2):
        tidy()
        started = time.perf_counter()
        trial = made(what, corpus, folder)
        train(trial, Quiet())
        synchronize()
        whole = time.perf_counter() - started
    ends: list[float] = []
    train_without_validation(trial, EPOCHS, lambda *_: ends.append(time.perf_counter()))
    steps = (ends[-1] - ends[0]) / (EPOCHS - 1) * EPOCHS
    return {"trial": whole, "steps": steps, "overhead": whole - steps}


class Quiet:
    """Reporter that discards reports and never stops a trial."""

    stop_requested = False

    def report(self, value: float, epoch: int) -> None: ...

    def note(self, *, epoch: float, samples_per_second: float | None) -> None: ...

    def should_prune(self) -> bool:
        return False

    def prune(self) -> NoReturn:
        raise NotImplementedError

    def stop(self) -> NoReturn:
        raise NotImplementedError


def tidy() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    imported = time.time()
    parser = argparse.ArgumentParser(description="One cold process, until its first step.")
    parser.add_argument("task")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    what = TASKS[options.task]
    trial = made(what, corpus_of(what), options.folder)
    prepared = time.time()
    first_step(trial)
    print(json.dumps({"imported": imported, "prepared": prepared, "stepped": time.time()}))


if __name__ == "__main__":
    main()
