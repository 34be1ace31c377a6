"""Steps that are recorded once for each width and then replayed: the device never waits for
Python.

    Epoch ──timetable──▶ rows, shares, rates on the device, with counters
            └─▶ recorded micro-step: next rows ──▶ loss, gradients ──▶ counter + 1
            └─▶ recorded update: next rate ──▶ clip, step ──▶ counter + 1

A recording takes what it works on from the tables at its counters, so that replaying it needs no
word from the host. Where an effective batch is one micro-step, both are one recording.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from supermax.training.recording import Recorder, Work
from supermax.training.resident import Resident
from supermax.training.schedules import apply
from supermax.training.steps import EagerStep, Execution, Shares
from supermax.training.timetable import Timetable, chosen, timetable, widened
from supermax.training.ways import EagerWay, Epoch
from supermax.words import in_short

if TYPE_CHECKING:
    from supermax.training.prepare import Data

_RECORDING = 0.3  # seconds that a recording takes
_RATE = 2.5e14  # operations a second
_ROUND = 8
RECORDED_OPTIMIZERS = ("adamw",)
"""Whose updates take their rate from the device."""


class CapturedWay:
    def __init__(
        self,
        step: EagerStep,
        data: Data,
        pads: tuple[int, ...],
        base_rates: Sequence[float],
        recorder: Recorder,
        epochs: int,
    ) -> None:
        config, execution = step.config, step.execution
        self.why_eager: str | None = None
        self._step, self._data, self._base_rates = step, data, list(base_rates)
        self._eager = EagerWay(step, data, pads, base_rates, "")
        self._recorder, self._epochs = recorder, epochs
        self._size = execution.micro_batch or config.train.effective_batch
        self._whole = self._size >= config.train.effective_batch
        self._records_updates = config.optim.name in RECORDED_OPTIMIZERS
        self._resident = Resident(data, pads, execution.device)
        self._weights = None if step.weights is None else step.weights.cpu().numpy()
        self._trained = [p for p in step.model.parameters() if p.requires_grad]
        self._widths: list[list[int]] | None = None
        self._table: Timetable | None = None
        self._epoch = Epoch((), ())
        self._tables = _Tables(execution.device)
        self._steps: dict[tuple[int, ...], Work] = {}
        self._update: Work | None = None
        self._rates: list[Tensor] = []

    # What the loop asks for.

    def begin(self, epoch: Epoch, done: int) -> None:
        self._epoch = epoch
        if self.why_eager is not None:
            self._tables.loss.zero_()
            return self._eager.begin(epoch, done)
        self._table = timetable(epoch.batches, self._data, self._size, self._weights)
        self._widths = self._widths or self._chosen(self._table)
        self._tables.load(self._table, epoch.factors, int(self._table.first[done]), done)
        if self._records_updates:
            self._take_rates_from_the_device()
        return None

    def take(self, update: int) -> None:
        if self.why_eager is None:
            try:
                self._get_ready_for(update)
            except Exception as error:  # what cannot be recorded is done one by one
                self._give_up(error, update)
        if self.why_eager is not None:
            return self._eager.take(update)
        assert self._table is not None
        for micro in range(self._table.first[update], self._table.first[update + 1]):
            self._steps[self._wide(micro)]()
        if self._update is not None:
            self._update()
        elif not self._whole or not self._records_updates:
            apply(self._step.optimizer, self._base_rates, self._epoch.factors[update])
            self._step.update()
        return None

    def loss(self) -> float:
        return float(self._tables.loss) + self._eager.loss()

    # Recording.

    def _get_ready_for(self, update: int) -> None:
        """Record what this update is the first to need."""
        assert self._table is not None
        for micro in range(self._table.first[update], self._table.first[update + 1]):
            wide = self._wide(micro)
            if wide not in self._steps:
                self._steps[wide] = self._recorded(wide)
        if self._records_updates and not self._whole and self._update is None:
            self._make_state()
            self._update = self._recorder.record(self._updated, lambda: None)

    def _recorded(self, wide: tuple[int, ...]) -> Work:
        both = self._whole and self._records_updates
        if both:
            self._make_state()
        else:
            self._keep_gradients()

        def run() -> None:
            self._micro(wide)
            if both:
                self._updated()

        def rehearse() -> None:
            with self._without_traces():
                self._micro(wide)

        with self._gradients_apart(both):
            return self._recorder.record(run, rehearse)

    def _micro(self, wide: tuple[int, ...]) -> None:
        rows, share = self._tables.next_rows()
        loss = self._step.micro(self._resident.batch(rows, wide), share)
        self._tables.add(loss)

    def _updated(self) -> None:
        factor = self._tables.next_factor()
        for rate, base in zip(self._rates, self._base_rates, strict=True):
            rate.copy_(factor * base)
        self._step.update()

    def _make_state(self) -> None:
        """Of the optimizer, where it has none yet: a recording would make it anew each time.
        Nothing else changes."""
        optimizer = self._step.optimizer
        if len(optimizer.state) == len(self._trained):
            return
        kept = [parameter.grad for parameter in self._trained]
        for parameter in self._trained:
            parameter.grad = torch.zeros_like(parameter)
        for rate in self._rates:
            rate.zero_()
        optimizer.step()
        for state in optimizer.state.values():
            state["step"].zero_()
        for parameter, gradient in zip(self._trained, kept, strict=True):
            parameter.grad = gradient

    def _take_rates_from_the_device(self) -> None:
        if self._rates:
            return
        for group in self._step.optimizer.param_groups:
            rate = torch.zeros((), device=self._step.execution.device)
            group["lr"], group["capturable"] = rate, True
            self._rates.append(rate)

    def _keep_gradients(self) -> None:
        """Recorded micro-steps add to gradients that stay where they are."""
        self._step.keep_gradients = True
        for parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    @contextlib.contextmanager
    def _gradients_apart(self, apart: bool) -> Iterator[None]:
        """A recording of a whole step makes its gradients itself, and nobody else sees them."""
        if apart:
            self._step.optimizer.zero_grad(set_to_none=True)
        yield
        if apart:
            self._step.optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def _without_traces(self) -> Iterator[None]:
        kept = [parameter.grad for parameter in self._trained]
        for parameter in self._trained:
            parameter.grad = None
        with self._tables.unchanged():
            yield
        for parameter, gradient in zip(self._trained, kept, strict=True):
            parameter.grad = gradient

    def _give_up(self, error: Exception, update: int) -> None:
        """From this update on, one by one."""
        self.why_eager = f"it cannot be recorded ({in_short(error)})"
        self._steps.clear()
        self._update = None
        self._step.keep_gradients = False
        self._step.optimizer.zero_grad(set_to_none=True)
        for group in self._step.optimizer.param_groups if self._rates else ():
            group["capturable"] = False
        self._eager.begin(self._epoch, update)

    # Widths.

    def _wide(self, micro: int) -> tuple[int, ...]:
        assert self._table is not None
        assert self._widths is not None
        needed = self._table.needed[micro]
        return tuple(widened(int(n), w) for n, w in zip(needed, self._widths, strict=True))

    def _chosen(self, table: Timetable) -> list[list[int]]:
        """Few widths for each encoder, with the widest that any epoch can need."""
        found = []
        for place, (view, encoder) in enumerate(
            zip(self._data.views, self._step.model.encoders, strict=True)
        ):
            longest = int(view.lengths.max())
            # Beyond the encoder's positions nothing may be; without padding nothing is.
            rounded = [min(-(-int(n) // _ROUND) * _ROUND, longest) for n in table.needed[:, place]]
            counts = Counter({w: n * self._epochs for w, n in Counter(rounded).items()})
            counts[longest] += 0
            found.append(chosen(counts, self._seconds(encoder), _RECORDING))
        return found

    def _seconds(self, encoder: Any) -> Callable[[int], float]:
        numbers = sum(p.numel() for p in encoder.parameters() if p.ndim == 2)
        each = 6 * numbers * self._size / _RATE
        return lambda width: each * width


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
        yield
        for counter, before in zip(counters, kept, strict=True):
            counter.copy_(before)


def why_not(execution: Execution) -> str | None:
    """A reason not to record steps on a GPU, known before one is tried."""
    if not execution.captured:
        return "it was asked for"
    if execution.precision == "fp16":
        return "fp16 decides on the host whether a step counts"
    if execution.checkpoint_activations:
        return "activations that are computed again cannot be recorded"
    return None
