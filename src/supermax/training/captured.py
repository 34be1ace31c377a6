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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from supermax.training.batches import Batch
from supermax.training.compiling import Compiled, Compiler
from supermax.training.costs import cost_of
from supermax.training.looking import Looks, RecordedLook, know_widths, laid_out
from supermax.training.packing import Packing, row_width
from supermax.training.recording import Recorder, Work
from supermax.training.resident import Resident
from supermax.training.steps import Shares
from supermax.training.timetable import Timetable, chosen, rounded, timetable, widened
from supermax.training.updates import Updates
from supermax.training.ways import EagerWay, Epoch
from supermax.words import in_short

if TYPE_CHECKING:
    from supermax.training.prepare import Data


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
        self._updates = Updates(step, whole=self._size >= config.train.effective_batch)
        self._epochs = config.train.epochs
        self._costs = [cost_of(encoder.model) for encoder in step.model.encoders]  # type: ignore[arg-type]
        self._resident = Resident(data, eager.pads, execution.device)
        self._longest = [int(view.lengths.max()) for view in data.views]
        self._packed = [
            row_width(longest) if encoder.packs and self._size > 1 else None
            for encoder, longest in zip(step.model.encoders, self._longest, strict=True)
        ]
        """Width of packed rows, for each encoder; None where sequences are padded instead."""
        self._most_tokens = 0
        self._weights = None if step.weights is None else step.weights.cpu().numpy()
        self._widths: list[list[int]] | None = None
        self._table: Timetable | None = None
        self._epoch = Epoch((), ())
        self._tables = _Tables(execution.device)
        self._steps: dict[tuple[int, ...], Work] = {}
        self._update: Work | None = None
        self._looks: tuple[Data, RecordedLook | None] | None = None

    # What the loop asks for.

    @property
    def how(self) -> str:
        if self.why_eager is not None:
            return f"one by one: {self.why_eager}"
        plain = self._updates.why_plain
        return self._how_steps + ("" if plain is None else f"; updates by torch alone: {plain}")

    @property
    def _how_steps(self) -> str:
        if self._compiled is not None:
            return "compiled and recorded"
        model, compiler = self._step.model, self._compiler
        broken = compiler.broken(model, self._execution) if compiler is not None else None
        return "recorded" if broken is None else f"recorded, not compiled: {broken}"

    @property
    def most_tokens(self) -> int:
        return max(self._most_tokens, self._eager.most_tokens)

    def begin(self, epoch: Epoch, done: int) -> None:
        self._epoch = epoch
        self._eager.begin(epoch, done)
        self._tables.loss.zero_()
        if self.why_eager is not None:
            return
        self._table = timetable(epoch.batches, self._data, self._size, self._weights, self._packed)
        if self._widths is None:
            self._widths = self._chosen(self._table)
            self._compile()
        self._tables.load(self._table, epoch.factors, int(self._table.first[done]), done)
        self._updates.begin(self._size * max(row_width(longest) for longest in self._longest))

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
        elif not self._updates.whole:
            self._updates.update_now(self._epoch.factors[update])

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
            # Before capture, which may run out of memory: that is measured against these tokens.
            self._most_tokens = max(self._most_tokens, *self._tokens_of(wide))
            if wide not in self._steps:
                self._steps[wide] = self._recorded(wide)
        if self._updates.recorded and not self._updates.whole and self._update is None:
            with self._getting_ready():
                self._updates.find_place()
                self._update = self._recorder.record(self._updated, lambda: None, "step")

    def _recorded(self, wide: tuple[int, ...]) -> Work:
        def run() -> None:
            self._micro(wide)
            if self._updates.whole:
                self._updated()

        def rehearse() -> None:
            with self._tables.unchanged():
                self._micro(wide, padded=True)
            self._updates.forget()  # micro-steps add to those that the loss reached

        with self._getting_ready():
            self._updates.get_ready()
            if self._updates.whole:
                self._updates.find_place()
            know_widths(self._step.model, self._row_widths(wide), self._step.execution.device)
            recorded = self._recorder.record(run, rehearse, "step")
        self._updates.forget()
        if self._compiler is not None and self._compiled is not None:
            self._compiler.worked(self._compiled.keys)
        return recorded

    @contextlib.contextmanager
    def _getting_ready(self) -> Iterator[None]:
        self._recorder.settle()
        started = time.perf_counter()
        try:
            yield
        finally:
            self.getting_ready += time.perf_counter() - started

    def _micro(self, wide: tuple[int, ...], *, padded: bool = False) -> None:
        rows, starts, share = self._tables.next_rows()
        batch = self._batch(rows, starts, wide, padded=padded)
        self._tables.add(self._updates.micro(batch, share))

    def _batch(
        self, rows: Tensor, starts: Tensor, wide: tuple[int, ...], *, padded: bool
    ) -> Batch:
        """Return the batch, for each encoder packed into `wide[e]` rows or padded to `wide[e]`
        tokens."""
        lengths = tuple(
            wide[e] if width is None else self._longest[e] for e, width in enumerate(self._packed)
        )
        batch = self._resident.batch(rows, lengths, padded=padded)
        return replace(
            batch,
            inputs=tuple(
                one if width is None else replace(one, packing=Packing(starts[e], wide[e], width))
                for e, (one, width) in enumerate(zip(batch.inputs, self._packed, strict=True))
            ),
        )

    def _tokens_of(self, wide: tuple[int, ...]) -> list[int]:
        return [n * (w or self._size) for n, w in zip(wide, self._packed, strict=True)]

    def _row_widths(self, wide: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n if w is None else w for n, w in zip(wide, self._packed, strict=True))

    def _updated(self) -> None:
        self._updates.update(self._tables.next_factor())

    def _compile(self) -> None:
        if self._compiler is not None:
            offered = self._compiler.offer(self._step.model, self._execution, self._expected())
            self._compiled = offered

    def _expected(self) -> float:
        """Seconds that the whole training takes, about."""
        assert self._table is not None
        return self._epochs * sum(
            self._seconds(e, int(n)) for needed in self._table.needed for e, n in enumerate(needed)
        )

    def _seconds(self, encoder: int, size: int) -> float:
        """Return the seconds of a step with `size` packed rows, or padded to `size` tokens."""
        width = self._packed[encoder]
        cost = self._costs[encoder]
        return cost.step(self._size, size) if width is None else cost.step(size, width)

    def _do_without(self, error: Exception) -> None:
        """Without compiled layers, if there are any; then without recordings. Nothing of the
        current update was done yet."""
        self._recorder.settle()  # what is replayed reads what is dropped now
        self._updates.forget()  # gradients of what failed half way
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
        self._updates.give_up()

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
        """Few sizes for each encoder, up to the largest that any epoch can need."""
        found = []
        for e, (longest, cost) in enumerate(zip(self._longest, self._costs, strict=True)):
            needed = [int(n) for n in table.needed[:, e]]
            if self._packed[e] is None:
                counts = rounded(needed, self._epochs)
                most = longest
            else:
                counts = Counter({n: self._epochs * times for n, times in Counter(needed).items()})
                most = self._size
            sizes = chosen(counts, partial(self._seconds, e), cost.recording)
            found.append(sorted({*sizes, *_spare(sizes[-1], most)}))
        return found


def _spare(largest: int, most: int) -> list[int]:
    """Sizes beyond the first epoch's largest, for batches of later epochs that need more: a little
    more, and the most that there can be. They are captured when they are needed."""
    return [min(most, largest + max(1, largest // 8)), most]


class _Tables:
    """What an epoch's recordings read, and how far they have come, on the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._rows = self._starts = self._shares = self._factors = torch.empty(0)
        self._micro = torch.zeros(1, dtype=torch.int64, device=device)
        self._update = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def load(self, table: Timetable, factors: Sequence[float], micro: int, update: int) -> None:
        """Every epoch has tables of the same size, in the same place."""
        parts = (
            torch.from_numpy(table.rows),
            torch.from_numpy(table.starts),
            torch.from_numpy(table.shares),
            torch.tensor(factors, dtype=torch.float32),
        )
        if not len(self._rows):
            self._rows, self._starts, self._shares, self._factors = (
                torch.empty_like(part, device=self._device) for part in parts
            )
        tables = (self._rows, self._starts, self._shares, self._factors)
        for place, part in zip(tables, parts, strict=True):
            place.copy_(part)
        self._micro.fill_(micro)
        self._update.fill_(update)
        self.loss.zero_()

    def next_rows(self) -> tuple[Tensor, Tensor, Shares]:
        rows = self._rows.index_select(0, self._micro)[0]
        starts = self._starts.index_select(0, self._micro)[0]
        classes, spans = self._shares.index_select(0, self._micro)[0].unbind()
        self._micro += 1
        return rows, starts, Shares(classes, spans)

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
