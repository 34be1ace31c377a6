"""Ways to take the steps of an epoch: the loop knows this interface and nothing of how.

Epoch ──begin()──▶ take(update) … ──▶ loss()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from supermax.training.batches import Indices, collate, packed, split
from supermax.training.looking import Looks, look
from supermax.training.schedules import apply
from supermax.training.steps import EagerStep, on, shares

if TYPE_CHECKING:
    from supermax.training.prepare import Data


@dataclass(frozen=True)
class Epoch:
    batches: Sequence[Indices]
    """Effective batches, in their order."""
    factors: Sequence[float]
    """Of the learning rate, for each."""


class Way(Protocol):
    why_eager: str | None
    """Why steps are not recorded ones; None where they are."""
    getting_ready: float
    """Seconds that went into recording: they say nothing of how fast steps are."""

    @property
    def how(self) -> str:
        """In words."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest micro-batch so far, padding included."""

    def begin(self, epoch: Epoch, done: int) -> None:
        """Get ready for the rest of an epoch, of which `done` updates are behind."""

    def take(self, update: int) -> None:
        """All micro-steps of an effective batch, and the update of the weights."""

    def look(self, data: Data, passes: int) -> Looks:
        """What the model makes of a split, which will be looked at so many times."""

    def loss(self) -> float:
        """The sum of the updates' losses since the epoch, or its rest, began. Waits for the
        device, which nothing else here does."""


class EagerWay:
    """As PyTorch runs them, one operation after the other: the reference for all others."""

    def __init__(
        self, step: EagerStep, data: Data, pads: tuple[int, ...], why_eager: str | None = None
    ) -> None:
        self.step, self.data, self.pads = step, data, pads
        self.why_eager = why_eager
        self.getting_ready = 0.0
        self._most_tokens = 0
        self._packs = [bool(encoder.packs) for encoder in step.model.encoders]
        self._weights = None if step.weights is None else step.weights.cpu()
        self._epoch = Epoch((), ())
        self._loss = torch.zeros((), device=step.execution.device, dtype=torch.float64)

    @property
    def how(self) -> str:
        return f"one by one: {self.why_eager}" if self.why_eager else "one by one"

    @property
    def most_tokens(self) -> int:
        return self._most_tokens

    def begin(self, epoch: Epoch, done: int) -> None:
        self._epoch = epoch
        self._loss.zero_()

    def take(self, update: int) -> None:
        step, execution, data = self.step, self.step.execution, self.data
        indices = self._epoch.batches[update]
        share = shares(*data.targets(indices), self._weights)
        apply(step.optimizer, step.base_rates, self._epoch.factors[update])
        for some in split(indices, execution.micro_batch or len(indices)):
            rows = data.rows(some)
            batch = packed(collate(data.views, self.pads, rows), data.views, rows, self._packs)
            self._most_tokens = max(self._most_tokens, *(one.tokens for one in batch.inputs))
            self._loss += step.micro(on(batch, execution.device), share)
        step.update()

    def look(self, data: Data, passes: int) -> Looks:
        return look(self.step.model, data, self.pads, self.step.execution)

    def loss(self) -> float:
        return float(self._loss)
