"""What a trial took of the device, noted while it runs, so that the next estimate is better.

with measured(...) as gauge: train ──▶ Book
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from supermax.engine import kernel
from supermax.engine.shortage import Shortage, shortage
from supermax.memory.facts import Spec
from supermax.memory.learning import Book, Measured
from supermax.training.limits import libraries, resident
from supermax.training.loop import Result
from supermax.training.prepare import Prepared
from supermax.training.steps import Execution


@dataclass(frozen=True)
class Taken:
    allocated: int
    reserved: int


class Gauge:
    """The highest use of memory of a trial: torch keeps it for a GPU, the kernel for a process,
    since the cell took the trial. A process that earlier trials have made large says nothing:
    `before` is what they left in use."""

    def __init__(self, execution: Execution, before: int) -> None:
        self._on_gpu = execution.device.startswith("cuda")
        self._before = before
        self.result: Result | None = None
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(execution.device)

    def taken(self) -> Taken | None:
        if self._on_gpu:
            return Taken(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        beyond = (kernel.peak_rss() or 0) - resident()
        return Taken(beyond, beyond) if beyond > 2 * self._before else None


@contextlib.contextmanager
def measured(
    prepared: Prepared,
    spec: Spec,
    book: Book | None,
    before: int = 0,
    probes: Sequence[Measured] = (),
) -> Iterator[Gauge]:
    """Note what probes took, and what the training inside takes, also when it is not enough."""
    if book is not None:
        for probe in probes:
            book.note(spec, probe)
    gauge = Gauge(prepared.execution, before)
    short: Shortage | None = None
    try:
        yield gauge
    except Exception as error:
        short = shortage(error)
        raise
    finally:
        if book is not None:
            with contextlib.suppress(Exception):  # a poisoned context answers nothing any more
                _note(book, spec, prepared, gauge, short)


def _note(
    book: Book, spec: Spec, prepared: Prepared, gauge: Gauge, short: Shortage | None
) -> None:
    execution, taken = prepared.execution, gauge.taken()
    micro = execution.micro_batch or spec.effective_batch
    if short is not None:
        beyond = 0 if execution.device.startswith("cuda") else libraries()
        known = taken or Taken(0, 0)
        taken = Taken(max(known.allocated, short.needed - beyond), known.reserved)
    if taken is None:
        return
    seconds, tokens = _pace(prepared, gauge.result, micro)
    # Packed sequences take the memory of fewer: compare with the estimate for as many tokens.
    # Without any step, nothing is known of them.
    rows = min(micro, -(-prepared.way.most_tokens // spec.length) or micro)
    whole = micro >= spec.effective_batch
    book.note(
        spec,
        Measured(
            micro_batch=rows,
            checkpointing=execution.checkpoint_activations,
            length=spec.length,
            effective_batch=rows if whole else spec.effective_batch,
            allocated=taken.allocated,
            reserved=taken.reserved,
            seconds=seconds,
            tokens=tokens,
            at_least=short is not None,
        ),
    )


def _pace(prepared: Prepared, result: Result | None, micro: int) -> tuple[float | None, int]:
    """Seconds a micro-step, and its tokens on average."""
    if result is None or not result.samples_per_second:
        return None, 0
    return micro / result.samples_per_second, round(micro * float(prepared.train.lengths.mean()))
