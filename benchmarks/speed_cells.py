"""Several cells that train the same task at the same time, each in a separate process.

several() ──starts──▶ cells: prepare, capture ──"ready"──▶ all at once: N epochs ──▶ "done"
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
    error_text,
    execution,
)

from supermax.training.loop import train_without_validation
from supermax.training.prepare import prepare

LEAST = 3.0
"""Minimum duration of a measurement, in seconds."""
_LIMIT = 240.0
"""Seconds after which unfinished cells are killed."""
_FROM = multiprocessing.get_context("forkserver")
"""Its preloaded modules must not initialise CUDA."""
_FROM.set_forkserver_preload(
    [
        "supermax.training.loop",
        "supermax.training.prepare",
        "torch._inductor.compile_fx",
        "transformers.modeling_layers",
    ]
)


def get_ready() -> None:
    """Start the imports of the fork server in the background."""
    forkserver.ensure_running()


def several(name: str, alike: Sequence[Cells], folder: Path) -> Iterator[Line]:
    """Yield the total throughput for contenders that differ only in their number of cells.

    The largest number of cells is started; the rest wait while fewer train. Raises NotAvailable if
    the GPU cannot be shared.
    """
    most, started = max(alike, key=lambda cells: cells.count), time.time()
    with most.shared(), _running(name, most, folder) as running:
        ready = [_received(one, started) for one in running]
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
    """Return the results of all cells, and the seconds until the last one finished."""
    go = time.time()
    for one in running:
        one.send(epochs)
    done = [_received(one, started) for one in running]
    return done, max(one["end"] for one in done) - go


@contextmanager
def _running(name: str, cells: Cells, folder: Path) -> Iterator[list[Connection]]:
    """Start cells; kill them at the end of the block."""
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


def _received(cell: Connection, started: float) -> Line:
    """Return the next message of a cell."""
    try:
        if not cell.poll(max(0.0, started + _LIMIT - time.time())):
            raise RuntimeError("cells took too long")
        message: Line = cell.recv()
    except EOFError:
        raise RuntimeError("a cell has ended") from None
    if "failed" in message:
        raise RuntimeError(f"a cell has ended: {message['failed']}")
    return message


# A cell.


@dataclass(frozen=True)
class _Cell:
    task: str
    compiled: bool
    folder: Path
    environment: dict[str, str]
    """Environment variables, those of MPS included."""
    threads: int
    """CPU threads: an equal share of the cores, as in a run."""


def _train(cell: _Cell, ask: Connection) -> None:
    os.environ.clear()  # the fork server's environment is that of its first user
    os.environ.update(cell.environment)
    torch.set_num_threads(cell.threads)
    try:
        _trained(cell, ask)
    except Exception as error:
        ask.send({"failed": error_text(error)})


def _trained(cell: _Cell, ask: Connection) -> None:
    what = TASKS[cell.task]
    how, corpus = execution(captured=True, compiled=cell.compiled), corpus_of(what)
    prepared = prepare(config_of(what), corpus, corpus, cache=cell.folder, execution=how)
    ends = [time.time()]
    losses: list[float] = []

    def epoch_done(_: int, loss: float) -> None:
        ends.append(time.time())
        losses.append(loss)

    train_without_validation(prepared, 1, epoch_done)
    check_compiled(prepared)
    ask.send({"first_epoch": ends[1] - ends[0], "samples": len(prepared.train.chosen)})
    while True:  # until it is killed
        train_without_validation(prepared, ask.recv(), epoch_done)
        done = {"end": ends[-1], "loss": losses[-1], "why_eager": prepared.executor.why_eager}
        ask.send(done | {"how": prepared.executor.how})
