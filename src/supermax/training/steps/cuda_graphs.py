"""Step executor with CUDA graphs: steps are captured once for each shape, then replayed.

    EpochUpdates ──schedule_epoch()──▶ tables on the device: rows, loss denominators,
            │                          learning rates; counters
            └─▶ layers compiled, where that saves time
            └─▶ graph of a micro-step: next rows ──▶ loss, gradients ──▶ counter + 1
            └─▶ graph of an update: next learning rate ──▶ clip, step ──▶ counter + 1

A replay has the same arguments each time. What changes from step to step is therefore read from
tables on the device at a counter that the graph itself advances: a replay needs no copy from the
CPU and no synchronisation. Where an effective batch is one micro-batch, both graphs are one.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from supermax._util.text import in_short
from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.models.packing import Packing, row_length
from supermax.training.steps.batches import Batch
from supermax.training.steps.capturable_step import CapturableStep
from supermax.training.steps.compilation import CompiledLayers, Compiler
from supermax.training.steps.epoch_schedule import (
    EpochBatches,
    choose_sizes,
    count_rounded,
    schedule_epoch,
    smallest_fitting,
)
from supermax.training.steps.executors import EagerExecutor, EpochUpdates
from supermax.training.steps.gpu_dataset import GpuDataset
from supermax.training.steps.graph_capture import CaptureBackend, Work
from supermax.training.steps.inference import (
    CapturedInference,
    InferenceOutputs,
    plan_inference,
    prepare_for_lengths,
)
from supermax.training.steps.step import LossDenominators
from supermax.training.steps.step_cost_model import cost_of


class CudaGraphExecutor:
    """Replays CUDA graphs; `eager` takes over where a step cannot be captured."""

    def __init__(
        self, eager: EagerExecutor, backend: CaptureBackend, compiler: Compiler | None = None
    ) -> None:
        step, data = eager.step, eager.data
        config, execution = step.config, step.execution
        self.why_eager: str | None = None
        self.capture_seconds = 0.0
        self._eager, self._step, self._data, self._backend = eager, step, data, backend
        self._compiler = compiler
        self._compiled: CompiledLayers | None = None
        self._size = execution.micro_batch or config.train.effective_batch
        self._execution = replace(execution, micro_batch=self._size)
        """For the compiler: with the micro-batch size in place of None."""
        self._capturable = CapturableStep(
            step, single_micro=self._size >= config.train.effective_batch
        )
        self._epochs = config.train.epochs
        self._costs = [cost_of(encoder.model) for encoder in step.model.encoders]
        self._dataset = GpuDataset(data, eager.pads, execution.device)
        self._longest = [int(view.lengths.max()) for view in data.views]
        self._packed = [
            row_length(longest) if encoder.packs and self._size > 1 else None
            for encoder, longest in zip(step.model.encoders, self._longest, strict=True)
        ]
        """Length of packed rows for each encoder; None where sequences are padded instead."""
        self._most_tokens = 0
        self._weights = None if step.weights is None else step.weights.cpu().numpy()
        self._sizes: list[list[int]] | None = None
        """Sizes to capture, for each encoder: packed rows, or padded lengths."""
        self._schedule: EpochBatches | None = None
        self._epoch = EpochUpdates((), ())
        self._inputs = _StaticInputs(execution.device)
        self._steps: dict[tuple[int, ...], Work] = {}
        """Captured micro-steps by shape: a size for each encoder."""
        self._update: Work | None = None
        self._inference: tuple[TokenizedSplit, CapturedInference | None] | None = None

    # Interface of StepExecutor.

    @property
    def how(self) -> str:
        if self.why_eager is not None:
            return f"eager: {self.why_eager}"
        how = "CUDA graphs" if self._compiled is None else "compiled, CUDA graphs"
        if self._compiled is None and self._compiler is not None:
            broken = self._compiler.broken(self._step.model, self._execution)
            how += "" if broken is None else f", not compiled: {broken}"
        unfused = self._capturable.why_unfused
        return how if unfused is None else f"{how}; no fused AdamW kernel: {unfused}"

    @property
    def most_tokens(self) -> int:
        return max(self._most_tokens, self._eager.most_tokens)

    def begin(self, epoch: EpochUpdates, done: int) -> None:
        self._epoch = epoch
        self._eager.begin(epoch, done)
        self._inputs.loss.zero_()
        if self.why_eager is not None:
            return
        self._schedule = schedule_epoch(
            epoch.batches, self._data, self._size, self._weights, self._packed
        )
        if self._sizes is None:
            self._sizes = self._choose_sizes(self._schedule)
            self._compile(self._schedule)
        self._inputs.load(self._schedule, epoch.factors, int(self._schedule.first[done]), done)
        self._capturable.begin(self._size * max(row_length(longest) for longest in self._longest))

    def take(self, update: int) -> None:
        while self.why_eager is None:
            try:
                self._capture_for(update)
                break
            except torch.OutOfMemoryError:  # the trial is planned again: eager would be slow
                raise
            except Exception as error:  # whatever an operation raises that cannot be captured
                self._fall_back(error)
        if self.why_eager is None:
            self._replay(update)
        else:
            self._eager.take(update)

    def _replay(self, update: int) -> None:
        self._backend.limit_run_ahead()
        for shape in self._shapes_of(update):
            self._steps[shape]()
        if self._update is not None:
            self._update()
        elif not self._capturable.one_graph:
            self._capturable.update_now(self._epoch.factors[update])

    def loss(self) -> float:
        return float(self._inputs.loss) + self._eager.loss()

    def run_inference(self, data: TokenizedSplit, passes: int) -> InferenceOutputs:
        """Run inference with CUDA graphs where that saves time and works, else eagerly."""
        captured = self._captured_inference(data, passes) if self.why_eager is None else None
        if captured is not None:
            try:
                return captured()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._inference = (data, None)
                print(
                    f"Evaluation runs eagerly: it cannot be captured ({in_short(error)}).",
                    file=sys.stderr,
                )
        return self._eager.run_inference(data, passes)

    def _captured_inference(self, data: TokenizedSplit, passes: int) -> CapturedInference | None:
        """Return the captured passes over a split; None where a single pass, or their cost, does
        not pay for capture."""
        if passes < 2:
            return None
        if self._inference is None or self._inference[0] is not data:
            model, execution = self._step.model, self._step.execution
            layout, made = plan_inference(model, data, execution, passes), None
            if layout.pays:
                made = CapturedInference(model, layout, self._eager.pads, execution, self._backend)
            self._inference = (data, made)
        return self._inference[1]

    # Capture.

    def _capture_for(self, update: int) -> None:
        """Capture the graphs that this update is the first to need."""
        for shape in self._shapes_of(update):
            # Before capture, which may run out of memory: that is measured against these tokens.
            tokens = [
                size * (length or self._size)
                for size, length in zip(shape, self._packed, strict=True)
            ]
            self._most_tokens = max(self._most_tokens, *tokens)
            if shape not in self._steps:
                self._steps[shape] = self._capture_micro_step(shape)
        if self._capturable.captured and not self._capturable.one_graph and self._update is None:
            with self._timed():
                self._capturable.allocate_buffers()
                self._update = self._backend.capture(self._updated, lambda: None, "step")

    def _capture_micro_step(self, shape: tuple[int, ...]) -> Work:
        """Capture a micro-step of this shape, with its update where both are one graph."""

        def run() -> None:
            self._micro(shape)
            if self._capturable.one_graph:
                self._updated()

        def warm_up() -> None:
            with self._inputs.restored():
                self._micro(shape, padded=True)
            # Where gradients accumulate over micro-steps, this leaves zeros at fixed addresses
            # for the parameters that the loss reaches; others keep None and are not updated.
            self._capturable.clear_gradients()

        with self._timed():
            self._capturable.prepare_capture()
            if self._capturable.one_graph:
                self._capturable.allocate_buffers()
            lengths = tuple(
                length or size for size, length in zip(shape, self._packed, strict=True)
            )
            prepare_for_lengths(self._step.model, lengths, self._step.execution.device)
            captured = self._backend.capture(run, warm_up, "step")
        self._capturable.clear_gradients()
        if self._compiler is not None and self._compiled is not None:
            self._compiler.worked(self._compiled.keys)
        return captured

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the time of the block to `capture_seconds`."""
        self._backend.synchronize()
        started = time.perf_counter()
        try:
            yield
        finally:
            self.capture_seconds += time.perf_counter() - started

    def _micro(self, shape: tuple[int, ...], *, padded: bool = False) -> None:
        rows, starts, denominators = self._inputs.next_rows()
        batch = self._batch(rows, starts, shape, padded=padded)
        self._inputs.loss += self._capturable.micro(batch, denominators)

    def _batch(
        self, rows: Tensor, starts: Tensor, shape: tuple[int, ...], *, padded: bool
    ) -> Batch:
        """Return the batch, for each encoder e packed into `shape[e]` rows or padded to `shape[e]`
        tokens."""
        lengths = tuple(
            shape[e] if length is None else self._longest[e]
            for e, length in enumerate(self._packed)
        )
        batch = self._dataset.batch(rows, lengths, padded=padded)
        return replace(
            batch,
            inputs=tuple(
                inputs
                if length is None
                else replace(inputs, packing=Packing(starts[e], shape[e], length))
                for e, (inputs, length) in enumerate(zip(batch.inputs, self._packed, strict=True))
            ),
        )

    def _updated(self) -> None:
        self._capturable.update(self._inputs.next_factor())

    def _compile(self, schedule: EpochBatches) -> None:
        """Compile layers if that saves time in a training of the estimated duration."""
        if self._compiler is not None:
            seconds = self._epochs * sum(
                self._seconds(e, int(n))
                for needed in schedule.needed
                for e, n in enumerate(needed)
            )
            self._compiled = self._compiler.offer(self._step.model, self._execution, seconds)

    def _seconds(self, encoder: int, size: int) -> float:
        """Return the seconds of a step with `size` packed rows, or padded to `size` tokens."""
        length = self._packed[encoder]
        cost = self._costs[encoder]
        return cost.step(self._size, size) if length is None else cost.step(size, length)

    def _fall_back(self, error: Exception) -> None:
        """Drop compiled layers, if there are any, else CUDA graphs. The current update is then
        tried again: capture does not run it, so none of it was done yet."""
        self._backend.synchronize()  # replays may still use the graphs that are dropped
        self._capturable.clear_gradients()  # those of the failed capture or warm-up
        self._steps.clear()
        self._update = None
        if self._compiled is None or self._compiler is None:
            self.why_eager = f"CUDA graph capture failed ({in_short(error)})"
            self._capturable.switch_to_eager()
            return
        self._compiler.failed(self._compiled.failed_keys, error)
        self._compiled.drop()
        self._compiled = None

    # Shapes.

    def _shapes_of(self, update: int) -> Iterator[tuple[int, ...]]:
        """Yield the captured shape of each micro-step of an update."""
        assert self._schedule is not None
        assert self._sizes is not None
        for needed in self._schedule.needed[
            self._schedule.first[update] : self._schedule.first[update + 1]
        ]:
            yield tuple(
                smallest_fitting(int(n), sizes)
                for n, sizes in zip(needed, self._sizes, strict=True)
            )

    def _choose_sizes(self, schedule: EpochBatches) -> list[list[int]]:
        """Return the sizes to capture for each encoder, up to the largest that an epoch can
        need."""
        chosen = []
        for e, (longest, cost) in enumerate(zip(self._longest, self._costs, strict=True)):
            needed = [int(n) for n in schedule.needed[:, e]]
            if self._packed[e] is None:
                counts = count_rounded(needed, self._epochs)
                most = longest
            else:
                counts = Counter({n: self._epochs * times for n, times in Counter(needed).items()})
                most = self._size
            sizes = choose_sizes(counts, partial(self._seconds, e), cost.capture)
            chosen.append(sorted({*sizes, *_spare_sizes(sizes[-1], most)}))
        return chosen


def _spare_sizes(largest: int, most: int) -> list[int]:
    """Return two sizes for batches of later epochs that need more than `largest`, the largest of
    the first epoch: an eighth more, and `most`, the largest possible. They are captured only when
    a batch needs them."""
    return [min(most, largest + max(1, largest // 8)), most]


class _StaticInputs:
    """Inputs of the captured steps of an epoch, and counters of how many were taken, on the
    device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._rows = self._starts = self._denominators = self._factors = torch.empty(0)
        self._micro = torch.zeros(1, dtype=torch.int64, device=device)
        self._update = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def load(
        self, schedule: EpochBatches, factors: Sequence[float], micro: int, update: int
    ) -> None:
        """Load an epoch, to go on at this micro-step and update.

        Graphs hold the addresses of the tables. So they are allocated once, by the first epoch,
        and later epochs, whose tables have the same sizes, are copied into them.
        """
        parts = (
            torch.from_numpy(schedule.rows),
            torch.from_numpy(schedule.starts),
            torch.from_numpy(schedule.denominators),
            torch.tensor(factors, dtype=torch.float32),
        )
        if not len(self._rows):
            self._rows, self._starts, self._denominators, self._factors = (
                torch.empty_like(part, device=self._device) for part in parts
            )
        tables = (self._rows, self._starts, self._denominators, self._factors)
        for table, part in zip(tables, parts, strict=True):
            table.copy_(part)
        self._micro.fill_(micro)
        self._update.fill_(update)
        self.loss.zero_()

    def next_rows(self) -> tuple[Tensor, Tensor, LossDenominators]:
        """Return rows, packed starts and denominators of the next micro-step; to be captured."""
        # index_select with a tensor on the device: an index from the CPU would be a constant of
        # the graph.
        rows = self._rows.index_select(0, self._micro)[0]
        starts = self._starts.index_select(0, self._micro)[0]
        classes, spans = self._denominators.index_select(0, self._micro)[0].unbind()
        self._micro += 1
        return rows, starts, LossDenominators(classes, spans)

    def next_factor(self) -> Tensor:
        """Return the learning-rate factor of the next update; to be captured."""
        factor = self._factors.index_select(0, self._update)[0]
        self._update += 1
        return factor

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore counters and loss after the block: a warm-up must not count as a step."""
        counters = (self._micro, self._update, self.loss)
        saved = [counter.clone() for counter in counters]
        try:
            yield
        finally:
            for counter, before in zip(counters, saved, strict=True):
                counter.copy_(before)
