"""Samples per second in the steady state: contenders in this process, and in several cells."""

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
    error_text,
    execution,
    service,
    synchronize,
)
from transformers import Trainer, TrainerCallback

from supermax.training.loop import train_without_validation
from supermax.training.models.attention import without_cudnn_attention
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution

MEASURED = 2
"""Epochs, of which the first is a warm-up."""
LEAST = 3.0
"""Minimum duration of a measurement, in seconds."""


def ours(what: Task, folder: Path, how: Execution) -> Line:
    corpus = corpus_of(what)
    started = time.perf_counter()
    prepared = prepare(config_of(what), corpus, corpus, cache=folder, execution=how)
    ready = time.perf_counter()
    ends: list[float] = []
    losses: list[float] = []

    def epoch_done(_: int, loss: float) -> None:
        ends.append(time.perf_counter())
        losses.append(loss)

    train_without_validation(prepared, MEASURED, epoch_done)
    check_compiled(prepared)
    loss, first = losses[-1], ends[0] - ready
    steady = [later - before for before, later in pairwise(ends)]
    if sum(steady) < LEAST:
        ends[:] = [time.perf_counter()]
        train_without_validation(
            prepared, math.ceil(LEAST / statistics.median(steady)), epoch_done
        )
        steady += [later - before for before, later in pairwise(ends)]
    return {
        "samples_per_second": len(prepared.train.chosen) / statistics.median(steady),
        "epochs": len(steady),
        "before": ready - started,
        "first_epoch": first,
        "loss": loss,
        "why_eager": prepared.executor.why_eager,
        "how": prepared.executor.how,
        "peak": torch.cuda.max_memory_reserved() if DEVICE == "cuda" else 0,
        "tokens": float(prepared.train.lengths.mean()),
    }


class _Clock(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch_end(self, *_: object, **__: object) -> None:
        synchronize()
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
        data_collator=peer.collator,
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
    """Measure contenders, Trainer always first.

    None of them uses cuDNN's attention, whose kernels would be built for new lengths meanwhile.
    """
    run, wanted = f"{time.time():.0f}", dict.fromkeys([REFERENCE, *contenders])
    if any(map(cells_of, wanted)):
        get_ready()
    with tempfile.TemporaryDirectory() as folder, without_cudnn_attention():
        for sharing, some in groupby(wanted, _shares):
            groups = [list(alike) for _, alike in groupby(some, _alike)]
            with _service(sharing):
                for name, alike in product(names, groups):
                    line = {"part": "steady", "run": run, "task": name}
                    for contender, found in _measured(name, alike, Path(folder) / name):
                        keep(line | {"contender": contender, "attention": "no cuDNN"} | found)


@contextmanager
def _service(sharing: bool) -> Iterator[None]:
    """Start MPS once for all tasks: starting it takes longer than a measurement."""
    with ExitStack() as stack:
        if sharing:
            with suppress(NotAvailable):  # each contender reports it
                stack.enter_context(service())
        yield


def _shares(contender: str) -> bool:
    cells = cells_of(contender)
    return cells is not None and cells.mps


def _alike(contender: str) -> tuple[object, ...]:
    """Return a key that is equal for cells that differ only in their number."""
    cells = cells_of(contender)
    return (cells.mps, cells.share, cells.compiled) if cells is not None else (contender,)


def _measured(name: str, alike: list[str], folder: Path) -> Iterator[tuple[str, Line]]:
    """Yield the figures of contenders, or why there are none."""
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
            yield contender, {"failed": error_text(error)}
