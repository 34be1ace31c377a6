"""What comes before and between trials: a cold process, a warm cell, and 200 trials in one cell.

    start() ──▶ cold processes ──▶ seconds to the first step
            └─▶ one cell ──▶ warm first steps, overhead of a trial, growth over many

As a program this is the process, cold when it starts.
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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import psutil
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
    settled,
    validation_of,
)

from supermax.training.batches import order
from supermax.training.data.examples import Corpus
from supermax.training.loop import train, train_blind
from supermax.training.prepare import Prepared, prepare
from supermax.training.ways import Epoch

WARM = 5
"""Warm starts, of which the median counts."""
SHORT = 64
"""Pairs of a short trial."""
EDGE = 20
"""Trials early and late that are held against each other; before them come half as many."""


def start(name: str, short: str, repeat: int, seconds: float, keep: Keep) -> None:
    """`short`: the task of which `repeat` short trials are made, for so many seconds at most."""
    line = {"part": "start", "run": f"{time.time():.0f}", "task": name}
    with tempfile.TemporaryDirectory() as folder:
        for contender in ("cold, nothing kept", "cold, tokens kept"):
            keep(line | {"contender": contender} | _cold(name, Path(folder)))
        keep(line | {"contender": "warm"} | warm(TASKS[name], Path(folder)))
        keep(line | {"contender": "overhead"} | overhead(TASKS[name], Path(folder)))
        found = growth(TASKS[short], repeat, seconds, Path(folder))
        keep(line | {"contender": "growth", "task": short} | found)


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
    """As the loop takes it, and waited for."""
    size = prepared.config.train.effective_batch
    batches = order(prepared.train.lengths, size, prepared.seed, 0)
    factors = [prepared.schedule(update) for update in range(len(batches))]
    prepared.model.train()
    prepared.way.begin(Epoch(batches, factors), 0)
    prepared.way.take(0)
    settled()


def made(what: Task, corpus: Corpus, folder: Path, epochs: int = EPOCHS, **more: Any) -> Prepared:
    return prepare(
        config_of(what, epochs, **more),
        corpus,
        validation_of(corpus),
        cache=folder,
        execution=execution(captured=True),
    )


# A warm cell.


def warm(what: Task, folder: Path) -> Line:
    """The second trial of a process and those that come after it: made, and its first step with
    what is recorded for it."""
    corpus = corpus_of(what)
    first_step(made(what, corpus, folder))
    prepared, stepped = [], []
    for _ in range(WARM):
        _tidy()
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
    """What of a trial is not its steps: making it, recording, evaluation, keeping the best. Of
    the second one: a process imports what it evaluates with in its first."""
    corpus = corpus_of(what)
    for _ in range(2):
        _tidy()
        started = time.perf_counter()
        trial = made(what, corpus, folder)
        train(trial, Quiet())
        settled()
        whole = time.perf_counter() - started
    ends: list[float] = []
    train_blind(trial, EPOCHS, lambda *_: ends.append(time.perf_counter()))
    steps = (ends[-1] - ends[0]) / (EPOCHS - 1) * EPOCHS
    return {"trial": whole, "steps": steps, "overhead": whole - steps}


class Quiet:
    """Nobody watches these trials, or stops them."""

    stop_requested = False

    def report(self, value: float, epoch: int) -> None: ...

    def note(self, *, epoch: float, samples_per_second: float | None) -> None: ...

    def should_prune(self) -> bool:
        return False

    def prune(self) -> NoReturn:
        raise NotImplementedError

    def stop(self) -> NoReturn:
        raise NotImplementedError


# Many trials.


def growth(what: Task, repeat: int, limit: float, folder: Path) -> Line:
    """Short trials in one process, one after the other: do they get slower, or larger? Hosts get
    slower and faster by themselves, so beside each trial stands what the same plain work took
    there, and then: to be looked at where trials got slower."""
    corpus = corpus_of(replace(what, pairs=SHORT))
    gc.collect()
    gc.freeze()  # as cells do
    began = time.perf_counter()
    seconds: list[float] = []
    paces: list[float] = []
    device: list[int] = []
    host: list[int] = []
    while len(seconds) < repeat and time.perf_counter() - began < limit:
        started = time.perf_counter()
        dropout = 0.05 + 0.0005 * len(seconds)  # another in each, as in a search
        trial = made(what, corpus, folder, epochs=1, dropout=dropout)
        train(trial, Quiet())
        settled()
        seconds.append(time.perf_counter() - started)
        paces.append(_pace())
        why = trial.way.why_eager
        del trial
        _tidy()
        device.append(torch.cuda.memory_reserved() if DEVICE == "cuda" else 0)
        host.append(psutil.Process().memory_info().rss)
    return {
        "trials": len(seconds),
        "wanted": repeat,
        "seconds": _edges(seconds),
        "pace": _edges(paces),
        "device_memory": _edges(device),
        "host_memory": _edges(host),
        "why_eager": why,
        "all_seconds": [round(one, 4) for one in seconds],
    }


def _pace() -> float:
    """Seconds of work for the host that is always the same, the quickest of a few."""
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        total = 0
        for number in range(100_000):
            total += number % 7
        taken.append(time.perf_counter() - started)
    return min(taken)


def _edges(values: Sequence[float]) -> Line:
    """Medians early and late, and by which share it grew."""
    edge = min(EDGE, max(1, len(values) // 3))
    early = statistics.median(values[edge // 2 : edge // 2 + edge])
    late = statistics.median(values[-edge:])
    return {"early": early, "late": late, "growth": late / early - 1 if early else 0.0}


def _tidy() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    imported = time.time()
    parser = argparse.ArgumentParser(description="A process until its first step; see start().")
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
