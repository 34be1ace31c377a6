"""Several cells that train the same task at the same time, each a process of its own.

several() ──starts──▶ cells: prepare, record ──"ready"──▶ all at once: so many epochs ──▶ "done"
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from speed_tasks import (
    TASKS,
    Cells,
    Line,
    check_compiled,
    config_of,
    corpus_of,
    execution,
    in_words,
)

from supermax.training.loop import train_blind
from supermax.training.prepare import prepare

LEAST = 3.0
"""Seconds that all of them train."""
_LIMIT = 240.0
"""Seconds after which cells that still are not done are ended."""
_FROM = multiprocessing.get_context("forkserver")
"""What is imported there before cells are made of it must leave the GPU alone."""
_FROM.set_forkserver_preload(
    [
        "supermax.training.loop",
        "supermax.training.prepare",
        "torch._inductor.compile_fx",
        "transformers.modeling_layers",
    ]
)


def get_ready() -> None:
    """Let imports begin, beside what else is done first."""
    forkserver.ensure_running()


def several(name: str, alike: Sequence[Cells], folder: Path) -> Iterator[Line]:
    """Samples a second of all together, for each of contenders that differ in their number alone:
    the most of them are started, and the others wait while fewer train. Raises NotAvailable where
    the GPU cannot be shared."""
    most, started = max(alike, key=lambda cells: cells.count), time.time()
    with most.shared(), _running(name, most, folder) as running:
        ready = [_heard(one, started) for one in running]
        before = time.time() - started
        for cells in alike:
            found = _together(running[: cells.count], ready[: cells.count], started)
            yield found | {"cells": cells.count, "before": before}


def _together(running: list[Connection], ready: list[Line], started: float) -> Line:
    epochs = 1
    done, seconds = _all_at_once(running, epochs, started)
    if seconds < LEAST:
        epochs = math.ceil(LEAST / seconds)
        done, seconds = _all_at_once(running, epochs, started)
    samples, ends = sum(one["samples"] for one in ready), [one["end"] for one in done]
    return {
        "samples_per_second": epochs * samples / seconds,
        "epochs": epochs,
        "first_epoch": max(one["first_epoch"] for one in ready),
        "apart": max(ends) - min(ends),
        "loss": max(one["loss"] for one in done),
        "why_eager": next((one["why_eager"] for one in done if one["why_eager"]), None),
        "how": ", ".join(sorted({one["how"] for one in done})),
    }


def _all_at_once(
    running: list[Connection], epochs: int, started: float
) -> tuple[list[Line], float]:
    """What each says when it is done, and the seconds until all were."""
    go = time.time()
    for one in running:
        one.send(epochs)
    done = [_heard(one, started) for one in running]
    return done, max(one["end"] for one in done) - go


@contextmanager
def _running(name: str, cells: Cells, folder: Path) -> Iterator[list[Connection]]:
    """Ended with the block, done or not."""
    ours: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        for _ in range(cells.count):
            here, there = _FROM.Pipe()
            threads = max(1, (os.cpu_count() or 1) // cells.count)
            what = _Cell(name, cells.compiled, folder, dict(os.environ), threads)
            one = _FROM.Process(target=_train, args=(what, there), daemon=True)
            one.start()
            there.close()
            ours.append(here)
            processes.append(one)
        yield ours
    finally:
        for process in processes:
            process.kill()
            process.join()


def _heard(cell: Connection, started: float) -> Line:
    """What a cell says next."""
    try:
        if not cell.poll(max(0.0, started + _LIMIT - time.time())):
            raise RuntimeError("cells took too long")
        said: Line = cell.recv()
    except EOFError:
        raise RuntimeError("a cell has ended") from None
    if "failed" in said:
        raise RuntimeError(f"a cell has ended: {said['failed']}")
    return said


# A cell.


@dataclass(frozen=True)
class _Cell:
    task: str
    compiled: bool
    folder: Path
    environment: dict[str, str]
    """Which says whether the GPU is shared."""
    threads: int
    """Cores are shared out, as among a run's cells."""


def _train(cell: _Cell, ask: Connection) -> None:
    os.environ.clear()  # it came from a process that was started for others
    os.environ.update(cell.environment)
    torch.set_num_threads(cell.threads)
    try:
        _trained(cell, ask)
    except Exception as error:
        ask.send({"failed": in_words(error)})


def _trained(cell: _Cell, ask: Connection) -> None:
    what = TASKS[cell.task]
    how, corpus = execution(captured=True, compiled=cell.compiled), corpus_of(what)
    prepared = prepare(config_of(what), corpus, corpus, cache=cell.folder, execution=how)
    ends = [time.time()]
    losses: list[float] = []

    def told(_: int, loss: float) -> None:
        ends.append(time.time())
        losses.append(loss)

    train_blind(prepared, 1, told)
    check_compiled(prepared)
    ask.send({"first_epoch": ends[1] - ends[0], "samples": len(prepared.train.chosen)})
    while True:  # until it is ended
        train_blind(prepared, ask.recv(), told)
        done = {"end": ends[-1], "loss": losses[-1], "why_eager": prepared.way.why_eager}
        ask.send(done | {"how": prepared.way.how})
