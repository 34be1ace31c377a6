"""Samples a second once it goes: contenders in this process, and several cells at a time."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import torch
from speed_cells import get_ready, several
from speed_peers import BareLoop, Peer, training_arguments
from speed_tasks import (
    DEVICE,
    RATE,
    REFERENCE,
    TASKS,
    Cells,
    Keep,
    Line,
    NotAvailable,
    Task,
    cells_of,
    check_compiled,
    config_of,
    corpus_of,
    execution,
    in_words,
    service,
    settled,
)
from transformers import Trainer, TrainerCallback

from supermax.training.attention import unplanned
from supermax.training.loop import train_blind
from supermax.training.prepare import prepare
from supermax.training.steps import Execution

MEASURED = 2
"""Epochs, of which the first does not count."""
LEAST = 3.0
"""Seconds that are measured, where epochs are short."""


def ours(what: Task, folder: Path, how: Execution) -> Line:
    corpus = corpus_of(what)
    started = time.perf_counter()
    prepared = prepare(config_of(what), corpus, corpus, cache=folder, execution=how)
    ready = time.perf_counter()
    ends: list[float] = []
    losses: list[float] = []

    def told(_: int, loss: float) -> None:
        ends.append(time.perf_counter())
        losses.append(loss)

    train_blind(prepared, MEASURED, told)
    check_compiled(prepared)
    loss, first = losses[-1], ends[0] - ready
    steady = [later - before for before, later in pairwise(ends)]
    if sum(steady) < LEAST:
        ends[:] = [time.perf_counter()]
        train_blind(prepared, math.ceil(LEAST / statistics.median(steady)), told)
        steady += [later - before for before, later in pairwise(ends)]
    return {
        "samples_per_second": len(prepared.train.chosen) / statistics.median(steady),
        "epochs": len(steady),
        "before": ready - started,
        "first_epoch": first,
        "loss": loss,
        "why_eager": prepared.way.why_eager,
        "how": prepared.way.how,
        "peak": torch.cuda.max_memory_reserved() if DEVICE == "cuda" else 0,
        "tokens": float(prepared.train.lengths.mean()),
    }


class _Clock(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        settled()
        self.ends.append(time.perf_counter())


def trainer(what: Task, folder: Path) -> Line:
    corpus, clock = corpus_of(what), _Clock()
    started = time.perf_counter()
    peer = Peer(what, corpus, folder)
    rows = peer.rows(corpus)
    run = Trainer(
        peer.network(),
        training_arguments(what, folder, num_train_epochs=MEASURED, learning_rate=RATE),
        train_dataset=rows,
        processing_class=peer.tokenizer,
        callbacks=[clock],
    )
    ready = time.perf_counter()
    done = run.train()
    return {
        "samples_per_second": len(rows) / (clock.ends[1] - clock.ends[0]),
        "epochs": 1,
        "before": ready - started,
        "first_epoch": clock.ends[0] - ready,
        "loss": done.training_loss,
    }


def bare_loop(what: Task, folder: Path) -> Line:
    corpus = corpus_of(what)
    started = time.perf_counter()
    peer = Peer(what, corpus, folder)
    rows = peer.rows(corpus)
    loop = BareLoop(peer, rows, RATE, MEASURED)
    ends = [time.perf_counter()]
    for epoch in range(MEASURED):
        loss = loop.epoch(epoch)
        ends.append(time.perf_counter())
    seconds = [later - before for before, later in pairwise(ends)]
    return {
        "samples_per_second": len(rows) / statistics.median(seconds[1:]),
        "epochs": len(seconds) - 1,
        "before": ends[0] - started,
        "first_epoch": seconds[0],
        "loss": loss,
    }


SINGLE: dict[str, Callable[[Task, Path], Line]] = {
    REFERENCE: trainer,
    "bare loop": bare_loop,
    "eager": lambda what, folder: ours(what, folder, execution(captured=False)),
    "captured": lambda what, folder: ours(what, folder, execution(captured=True)),
    "compiled": lambda what, folder: ours(what, folder, execution(captured=True, compiled=True)),
}
TOGETHER = [
    Cells(count, mps, compiled).name
    for mps, compiled in ((False, False), (True, False), (True, True))
    for count in (2, 4, 8)
]
CONTENDERS = [*SINGLE, *TOGETHER]


def steady(names: list[str], contenders: list[str], keep: Keep) -> None:
    """Trainer first, whoever else was asked for. All of them without cuDNN's attention, which
    would be made for new widths while it is measured."""
    run, wanted = f"{time.time():.0f}", dict.fromkeys([REFERENCE, *contenders])
    if any(map(cells_of, wanted)):
        get_ready()
    with tempfile.TemporaryDirectory() as folder, unplanned():
        for sharing, some in groupby(wanted, _shares):
            groups = [list(alike) for _, alike in groupby(some, _alike)]
            with _service(sharing):
                for name, alike in product(names, groups):
                    line = {"part": "steady", "run": run, "task": name}
                    for contender, found in _measured(name, alike, Path(folder) / name):
                        keep(line | {"contender": contender, "attention": "no cuDNN"} | found)


@contextmanager
def _service(sharing: bool) -> Iterator[None]:
    """Once for all tasks: to start it and end it takes longer than to measure."""
    with ExitStack() as stack:
        if sharing:
            with suppress(NotAvailable):  # each contender says so
                stack.enter_context(service())
        yield


def _shares(contender: str) -> bool:
    cells = cells_of(contender)
    return cells is not None and cells.mps


def _alike(contender: str) -> tuple[Any, ...]:
    """The same for cells that differ in their number alone."""
    cells = cells_of(contender)
    return (cells.mps, cells.share, cells.compiled) if cells is not None else (contender,)


def _measured(name: str, alike: list[str], folder: Path) -> Iterator[tuple[str, Line]]:
    """Their figures, or why there are none."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    cells = [one for one in map(cells_of, alike) if one is not None]
    place = folder / ("cells" if cells else alike[0])
    place.mkdir(parents=True, exist_ok=True)
    rest = list(alike)
    try:
        if cells:
            for line in several(name, cells, place):
                yield rest.pop(0), line
        else:
            line = SINGLE[alike[0]](TASKS[name], place)
            yield rest.pop(0), line
    except Exception as error:
        for contender in rest:
            yield contender, {"failed": in_words(error)}
