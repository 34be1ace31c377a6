"""Steps that are recorded once for each width and then replayed: the device never waits for
Python.

    Epoch ──timetable──▶ rows, shares, rates on the device, with counters
            └─▶ compiled, where that pays
            └─▶ recorded micro-step: next rows ──▶ loss, gradients ──▶ counter + 1
            └─▶ recorded update: next rate ──▶ clip, step ──▶ counter + 1

A recording takes what it works on from the tables at its counters, so that replaying it needs no
word from the host. Where an effective batch is one micro-step, both are one recording.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from supermax.training.compiling import Compiled, Compiler
from supermax.training.costs import cost_of
from supermax.training.looking import Looks, RecordedLook, know_widths, laid_out
from supermax.training.recording import Recorder, Work
from supermax.training.resident import Resident
from supermax.training.schedules import apply
from supermax.training.steps import Shares
from supermax.training.timetable import Timetable, chosen, rounded, timetable, widened
from supermax.training.ways import EagerWay, Epoch
from supermax.words import in_short

if TYPE_CHECKING:
    from supermax.training.prepare import Data

RECORDED_OPTIMIZERS = ("adamw", "adafactor", "lion")
"""Whose updates take their rate from the device, and whose states begin at 0."""


class CapturedWay:
    """`eager` takes over where something cannot be recorded."""

    def __init__(
        self, eager: EagerWay, recorder: Recorder, compiler: Compiler | None = None
    ) -> None:
        step, data = eager.step, eager.data
        config, execution = step.config, step.execution
        self.why_eager: str | None = None
        self.getting_ready = 0.0
        self._eager, self._step, self._data, self._recorder = eager, step, data, recorder
        self._compiler = compiler
        self._compiled: Compiled | None = None
        self._size = execution.micro_batch or config.train.effective_batch
        self._execution = replace(execution, micro_batch=self._size)
        """As the compiler is to know it: with the size that there is."""
        self._records_updates = config.optim.name in RECORDED_OPTIMIZERS
        self._both = self._records_updates and self._size >= config.train.effective_batch
        """A micro-step and its update are one recording."""
        self._epochs = config.train.epochs
        self._costs = [cost_of(encoder.model) for encoder in step.model.encoders]  # type: ignore[arg-type]
        self._resident = Resident(data, eager.pads, execution.device)
        self._weights = None if step.weights is None else step.weights.cpu().numpy()
        self._trained = [p for p in step.model.parameters() if p.requires_grad]
        self._widths: list[list[int]] | None = None
        self._table: Timetable | None = None
        self._epoch = Epoch((), ())
        self._tables = _Tables(execution.device)
        self._steps: dict[tuple[int, ...], Work] = {}
        self._update: Work | None = None
        self._rates: list[Tensor] = []
        self._looks: tuple[Data, RecordedLook | None] | None = None

    # What the loop asks for.

    @property
    def how(self) -> str:
        if self.why_eager is not None:
            return f"one by one: {self.why_eager}"
        if self._compiled is not None:
            return "compiled and recorded"
        model, compiler = self._step.model, self._compiler
        broken = compiler.broken(model, self._execution) if compiler is not None else None
        return "recorded" if broken is None else f"recorded, not compiled: {broken}"

    def begin(self, epoch: Epoch, done: int) -> None:
        self._epoch = epoch
        self._eager.begin(epoch, done)
        self._tables.loss.zero_()
        if self.why_eager is not None:
            return
        self._table = timetable(epoch.batches, self._data, self._size, self._weights)
        if self._widths is None:
            self._widths = self._chosen(self._table)
            self._compile()
        self._tables.load(self._table, epoch.factors, int(self._table.first[done]), done)
        if self._records_updates:
            self._take_rates_from_the_device()

    def take(self, update: int) -> None:
        while self.why_eager is None:
            try:
                self._get_ready_for(update)
                break
            except torch.OutOfMemoryError:  # to be planned again: one by one it would be slow
                raise
            except Exception as error:  # what cannot be recorded is done one by one
                self._do_without(error)
        if self.why_eager is None:
            self._replay(update)
        else:
            self._eager.take(update)

    def _replay(self, update: int) -> None:
        self._recorder.keep_up()
        for wide in self._widths_of(update):
            self._steps[wide]()
        if self._update is not None:
            self._update()
        elif not self._both:
            apply(self._step.optimizer, self._step.base_rates, self._epoch.factors[update])
            self._step.update()

    def loss(self) -> float:
        return float(self._tables.loss) + self._eager.loss()

    def look(self, data: Data, passes: int) -> Looks:
        """Recorded, where that pays and can be done."""
        recorded = self._recorded_look(data, passes) if self.why_eager is None else None
        if recorded is not None:
            try:
                return recorded()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._looks = (data, None)
                print(f"Evaluation cannot be recorded: {in_short(error)}", file=sys.stderr)
        return self._eager.look(data, passes)

    def _recorded_look(self, data: Data, passes: int) -> RecordedLook | None:
        """Of the split that is looked at again and again."""
        if passes < 2:
            return None
        if self._looks is None or self._looks[0] is not data:
            model, execution = self._step.model, self._step.execution
            layout, made = laid_out(model, data, execution, passes), None
            if layout.pays:
                made = RecordedLook(model, layout, self._eager.pads, execution, self._recorder)
            self._looks = (data, made)
        return self._looks[1]

    # Recording.

    def _get_ready_for(self, update: int) -> None:
        """Record what this update is the first to need."""
        for wide in self._widths_of(update):
            if wide not in self._steps:
                self._steps[wide] = self._recorded(wide)
        if self._records_updates and not self._both and self._update is None:
            self._update = self._record(self._updated, lambda: None)

    def _recorded(self, wide: tuple[int, ...]) -> Work:
        if self._records_updates:
            self._make_state()
        self._step.keep_gradients = not self._both
        know_widths(self._step.model, wide, self._step.execution.device)

        def run() -> None:
            self._micro(wide)
            if self._both:
                self._updated()

        def rehearse() -> None:
            with self._tables.unchanged():
                self._micro(wide, padded=True)
            self._forget_gradients()  # micro-steps add to those that the loss reached

        recorded = self._record(run, rehearse)
        self._forget_gradients()
        if self._compiler is not None and self._compiled is not None:
            self._compiler.worked(self._compiled.keys)
        return recorded

    def _record(self, run: Work, rehearse: Work) -> Work:
        self._recorder.settle()
        started = time.perf_counter()
        try:
            return self._recorder.record(run, rehearse, "step")
        finally:
            self.getting_ready += time.perf_counter() - started

    def _micro(self, wide: tuple[int, ...], *, padded: bool = False) -> None:
        rows, share = self._tables.next_rows()
        batch = self._resident.batch(rows, wide, padded=padded)
        self._tables.add(self._step.micro(batch, share))

    def _updated(self) -> None:
        factor = self._tables.next_factor()
        for rate, base in zip(self._rates, self._step.base_rates, strict=True):
            rate.copy_(factor * base)
        self._step.update()

    def _make_state(self) -> None:
        """Of the optimizer, for parameters that have none yet: a recording would make it anew
        each time. A step of nothing at a rate of 0 makes it; nothing else changes."""
        optimizer = self._step.optimizer
        without = [parameter for parameter in self._trained if not optimizer.state.get(parameter)]
        if not without:
            return
        with _groups_unchanged(optimizer):
            for parameter in without:
                parameter.grad = torch.zeros_like(parameter)
            for rate in self._rates:
                rate.zero_()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for parameter in without:
            for value in optimizer.state[parameter].values():
                value.zero_()

    def _take_rates_from_the_device(self) -> None:
        if self._rates:
            return
        for group in self._step.optimizer.param_groups:
            rate = torch.zeros((), device=self._step.execution.device)
            group["lr"] = rate
            self._rates.append(rate)
        self._say_capturable(True)

    def _say_capturable(self, capturable: bool) -> None:
        """To an optimizer that asks."""
        for group in self._step.optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = capturable

    def _forget_gradients(self) -> None:
        """Between two updates, where recordings are made, they are 0. A recording of a whole
        update has gradients of its own, which nobody else sees."""
        self._step.optimizer.zero_grad(set_to_none=self._both)

    def _compile(self) -> None:
        if self._compiler is not None:
            offered = self._compiler.offer(self._step.model, self._execution, self._expected())
            self._compiled = offered

    def _expected(self) -> float:
        """Seconds that the whole training takes, about."""
        assert self._table is not None
        return self._epochs * sum(
            cost.step(self._size, int(width))
            for needed in self._table.needed
            for cost, width in zip(self._costs, needed, strict=True)
        )

    def _do_without(self, error: Exception) -> None:
        """Without compiled layers, if there are any; then without recordings. Nothing of the
        current update was done yet."""
        self._forget_gradients()  # of what failed half way
        self._steps.clear()
        self._update = None
        if self._compiled is None or self._compiler is None:
            self._give_up(error)
            return
        self._compiler.failed(self._compiled.culprits, error)
        self._compiled.drop()
        self._compiled = None

    def _give_up(self, error: Exception) -> None:
        """From here on, one by one."""
        self.why_eager = f"it cannot be recorded ({in_short(error)})"
        self._step.keep_gradients = False
        self._step.optimizer.zero_grad(set_to_none=True)
        self._say_capturable(False)

    # Widths.

    def _widths_of(self, update: int) -> Iterator[tuple[int, ...]]:
        """Of each of its micro-steps, for each encoder."""
        assert self._table is not None
        assert self._widths is not None
        for needed in self._table.needed[
            self._table.first[update] : self._table.first[update + 1]
        ]:
            yield tuple(widened(int(n), w) for n, w in zip(needed, self._widths, strict=True))

    def _chosen(self, table: Timetable) -> list[list[int]]:
        """Few widths for each encoder, with the widest that any epoch can need."""
        found = []
        for place, (view, cost) in enumerate(zip(self._data.views, self._costs, strict=True)):
            counts = rounded([int(n) for n in table.needed[:, place]], self._epochs)
            counts[int(view.lengths.max())] += 0
            step = partial(cost.step, self._size)
            found.append(chosen(counts, step, cost.recording))
        return found


@contextlib.contextmanager
def _groups_unchanged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Some count their steps there."""
    kept = [dict(group) for group in optimizer.param_groups]
    try:
        yield
    finally:
        for group, before in zip(optimizer.param_groups, kept, strict=True):
            group.clear()
            group.update(before)


class _Tables:
    """What an epoch's recordings read, and how far they have come, on the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._rows = self._shares = self._factors = torch.empty(0)
        self._micro = torch.zeros(1, dtype=torch.int64, device=device)
        self._update = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def load(self, table: Timetable, factors: Sequence[float], micro: int, update: int) -> None:
        """Every epoch has tables of the same size, in the same place."""
        parts = (
            torch.from_numpy(table.rows),
            torch.from_numpy(table.shares),
            torch.tensor(factors, dtype=torch.float32),
        )
        if not len(self._rows):
            self._rows, self._shares, self._factors = (
                torch.empty_like(part, device=self._device) for part in parts
            )
        for place, part in zip((self._rows, self._shares, self._factors), parts, strict=True):
            place.copy_(part)
        self._micro.fill_(micro)
        self._update.fill_(update)
        self.loss.zero_()

    def next_rows(self) -> tuple[Tensor, Shares]:
        rows = self._rows.index_select(0, self._micro)[0]
        classes, spans = self._shares.index_select(0, self._micro)[0].unbind()
        self._micro += 1
        return rows, Shares(classes, spans)

    def next_factor(self) -> Tensor:
        factor = self._factors.index_select(0, self._update)[0]
        self._update += 1
        return factor

    def add(self, loss: Tensor) -> None:
        self.loss += loss

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        counters = (self._micro, self._update, self.loss)
        kept = [counter.clone() for counter in counters]
        try:
            yield
        finally:
            for counter, before in zip(counters, kept, strict=True):
                counter.copy_(before)
