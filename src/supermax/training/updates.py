"""How gradients become new weights where steps are recorded.

    begin() ──▶ get_ready() ──▶ micro() … ──▶ update()

What a recording works on has to be there before it, in one place for all of its replays: rates,
the optimizer's state, halves of the weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from supermax.training.batches import Batch
from supermax.training.fused import FusedAdamW, fused, why_not
from supermax.training.halves import Halves
from supermax.training.schedules import apply
from supermax.training.steps import EagerStep, Shares

RECORDED_OPTIMIZERS = ("adamw", "adafactor", "lion")
"""Whose updates take their rate from the device, and whose states begin at 0."""
_ROWS = 4096
"""That layers may see at least: DeBERTa's see their positions too, however small a batch is."""


class Updates:
    """Of one training: micro-steps and updates as they are recorded, and what they work on."""

    def __init__(self, step: EagerStep, *, whole: bool) -> None:
        """`whole`: an effective batch is one micro-step."""
        self.recorded = step.config.optim.name in RECORDED_OPTIMIZERS
        self.whole = whole and self.recorded
        """A micro-step and its update are one recording."""
        self._is_adamw = step.config.optim.name == "adamw"
        self._step = step
        self._trained = [p for p in step.model.parameters() if p.requires_grad]
        self._halves: Halves | None = None
        self._fused: FusedAdamW | None = None
        self._rates: list[Tensor] = []

    def begin(self, rows: int) -> None:
        """Of an epoch: weights may be others than they were. `rows`: that layers see at a time,
        at most, in any of them."""
        if self._halves is None and self._step.execution.precision == "bf16":
            self._halves = Halves(self._step.model, max(rows, _ROWS))
        if self.recorded and not self._rates:
            for group in self._step.optimizer.param_groups:
                rate = torch.zeros((), device=self._step.execution.device)
                group["lr"] = rate
                self._rates.append(rate)
            self._say_capturable(True)
        self._refresh()

    def get_ready(self) -> None:
        """For a recording."""
        self._step.keep_gradients = not self.whole
        if self.recorded:
            self._make_state()
        if self._halves is not None and self._is_adamw and self._fused is None:
            self._fused = fused(self._step.optimizer, self._halves)

    def find_place(self) -> None:
        """For a recording that has an update in it."""
        if self._fused is not None:
            self._fused.find_place()

    @property
    def why_plain(self) -> str | None:
        """Why updates take longer than they could."""
        return why_not() if self._is_adamw and self._fused is None else None

    def micro(self, batch: Batch, share: Shares) -> Tensor:
        """Gradients of a micro-batch, and its part of the loss."""
        if self._halves is None:
            return self._step.micro(batch, share)
        with self._halves.in_use():
            loss = self._step.micro(batch, share)
        passed_by = any(weight.grad is not None for weight in self._halves.of)
        if self._fused is None or not self.whole or passed_by:
            self._halves.give()
        return loss

    def update(self, factor: Tensor) -> None:
        """At so much of the learning rate. To be recorded."""
        for rate, base in zip(self._rates, self._step.base_rates, strict=True):
            rate.copy_(factor * base)
        if self._fused is None:
            self._step.update()
            self._refresh()
        else:
            self._fused(self._step.config.train.clip)
            self.forget()

    def update_now(self, factor: float) -> None:
        """One that cannot be recorded."""
        apply(self._step.optimizer, self._step.base_rates, factor)
        self._step.update()
        self._refresh()

    def forget(self) -> None:
        """Gradients, which are 0 between two updates. A recording of a whole update has some of
        its own, which nobody else sees."""
        self._step.optimizer.zero_grad(set_to_none=self.whole)
        if self._halves is not None:
            self._halves.forget()

    def give_up(self) -> None:
        """From here on nothing is recorded."""
        self._step.keep_gradients = False
        self._step.optimizer.zero_grad(set_to_none=True)
        self._say_capturable(False)
        self._halves = self._fused = None

    def _refresh(self) -> None:
        if self._halves is not None:
            self._halves.refresh()

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

    def _say_capturable(self, capturable: bool) -> None:
        """To an optimizer that asks."""
        for group in self._step.optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = capturable


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
