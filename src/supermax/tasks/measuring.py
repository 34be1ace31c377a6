"""Measurement of a trial's memory and time, which correct the estimates of later plans.

with measure_trial(...) as gauge: train ──▶ MeasurementLog
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from supermax._util import system
from supermax.engine.trial.oom import OomDetails, oom_details
from supermax.memory.facts import Spec
from supermax.memory.measurements import Measured, MeasurementLog
from supermax.training.loop import Result
from supermax.training.prepare import Prepared
from supermax.training.steps.execution import Execution
from supermax.training.steps.memory_limits import libraries, resident


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory in bytes. On a CPU both are resident memory beyond that of the libraries."""

    allocated: int
    reserved: int


class Gauge:
    """Gauge of a trial's peak memory, which PyTorch tracks on a GPU, and the kernel on a CPU.

    `before` is the memory in bytes that earlier trials left in use in this process.
    """

    def __init__(self, execution: Execution, before: int) -> None:
        self._on_gpu = execution.device.startswith("cuda")
        self._before = before
        self.result: Result | None = None
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(execution.device)

    def peak(self) -> PeakMemory | None:
        """Return the peak; None if earlier trials made the process too large to tell it."""
        if self._on_gpu:
            return PeakMemory(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        beyond = (system.peak_rss() or 0) - resident()
        return PeakMemory(beyond, beyond) if beyond > 2 * self._before else None


@contextlib.contextmanager
def measure_trial(
    prepared: Prepared,
    spec: Spec,
    book: MeasurementLog | None,
    before: int = 0,
    probes: Sequence[Measured] = (),
) -> Iterator[Gauge]:
    """Log the measurements of probes, and of the training inside, even if memory runs out."""
    if book is not None:
        for probe in probes:
            book.note(spec, probe)
    gauge = Gauge(prepared.execution, before)
    oom: OomDetails | None = None
    try:
        yield gauge
    except Exception as error:
        oom = oom_details(error)
        raise
    finally:
        if book is not None:
            with contextlib.suppress(Exception):  # after a CUDA error every call fails
                _log(book, spec, prepared, gauge, oom)


def _log(
    book: MeasurementLog, spec: Spec, prepared: Prepared, gauge: Gauge, oom: OomDetails | None
) -> None:
    execution, peak = prepared.execution, gauge.peak()
    micro = execution.micro_batch or spec.effective_batch
    if oom is not None:
        beyond = 0 if execution.device.startswith("cuda") else libraries()
        known = peak or PeakMemory(0, 0)
        peak = PeakMemory(max(known.allocated, oom.needed - beyond), known.reserved)
    if peak is None:
        return
    seconds, tokens = _micro_step_time(prepared, gauge.result, micro)
    # Packed sequences need the memory of fewer rows: log the rows of as many tokens. Without any
    # step, the number of tokens is unknown.
    rows = min(micro, -(-prepared.executor.most_tokens // spec.length) or micro)
    whole = micro >= spec.effective_batch
    book.note(
        spec,
        Measured(
            micro_batch=rows,
            checkpointing=execution.checkpoint_activations,
            length=spec.length,
            effective_batch=rows if whole else spec.effective_batch,
            allocated=peak.allocated,
            reserved=peak.reserved,
            seconds=seconds,
            tokens=tokens,
            at_least=oom is not None,
        ),
    )


def _micro_step_time(
    prepared: Prepared, result: Result | None, micro: int
) -> tuple[float | None, int]:
    """Return seconds and mean tokens of a micro-step; (None, 0) if they were not measured."""
    if result is None or not result.samples_per_second:
        return None, 0
    return micro / result.samples_per_second, round(micro * float(prepared.train.lengths.mean()))
