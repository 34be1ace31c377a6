"""Step executors: the interface through which the training loop runs updates, and the eager one.

EpochUpdates ──begin()──▶ take(update) … ──▶ loss()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.optim.schedules import set_learning_rates
from supermax.training.steps.batches import Indices, collate, micro_batches, packed
from supermax.training.steps.inference import InferenceOutputs, run_inference
from supermax.training.steps.step import TrainingStep, loss_denominators


@dataclass(frozen=True)
class EpochUpdates:
    """Updates of an epoch: their effective batches and learning rates."""

    batches: Sequence[Indices]
    """Effective batches, in their order."""
    factors: Sequence[float]
    """Factor of the base learning rate for each batch."""


class StepExecutor(Protocol):
    """Executes the updates of a training."""

    why_eager: str | None
    """Reason why steps run eagerly; None where they are CUDA graphs."""
    capture_seconds: float
    """Seconds spent on capturing graphs, which do not count for the throughput."""

    @property
    def how(self) -> str:
        """Description of how steps are executed, stored as `steps` in a trial's result."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest micro-batch so far, padding included."""

    def begin(self, epoch: EpochUpdates, done: int) -> None:
        """Prepare an epoch of which `done` updates were made before."""

    def take(self, update: int) -> None:
        """Run all micro-batches of an effective batch and update the weights."""

    def run_inference(self, data: TokenizedSplit, passes: int) -> InferenceOutputs:
        """Return the model's outputs for a split that is evaluated `passes` times in all."""

    def loss(self) -> float:
        """Return the sum of the losses of all updates since `begin`. Waits for the device, which
        no other method of an executor needs to."""


class EagerExecutor:
    """Runs steps in eager mode: the reference for other executors."""

    def __init__(
        self,
        step: TrainingStep,
        data: TokenizedSplit,
        pads: tuple[int, ...],
        why_eager: str | None = None,
    ) -> None:
        self.step, self.data, self.pads = step, data, pads
        self.why_eager = why_eager
        self.capture_seconds = 0.0
        self.most_tokens = 0
        self._packs = [bool(encoder.packs) for encoder in step.model.encoders]
        self._weights = None if step.weights is None else step.weights.cpu()
        self._epoch = EpochUpdates((), ())
        self._loss = torch.zeros((), device=step.execution.device, dtype=torch.float64)

    @property
    def how(self) -> str:
        return f"eager: {self.why_eager}" if self.why_eager else "eager"

    def begin(self, epoch: EpochUpdates, done: int) -> None:
        self._epoch = epoch
        self._loss.zero_()

    def take(self, update: int) -> None:
        step, execution, data = self.step, self.step.execution, self.data
        indices = self._epoch.batches[update]
        denominators = loss_denominators(*data.targets(indices), self._weights)
        set_learning_rates(step.optimizer, step.base_rates, self._epoch.factors[update])
        for micro_batch in micro_batches(indices, execution.micro_batch or len(indices)):
            rows = data.rows(micro_batch)
            batch = packed(collate(data.views, self.pads, rows), data.views, rows, self._packs)
            self.most_tokens = max(self.most_tokens, *(inputs.tokens for inputs in batch.inputs))
            self._loss += step.micro(batch.to(execution.device), denominators)
        step.update()

    def run_inference(self, data: TokenizedSplit, passes: int) -> InferenceOutputs:
        return run_inference(self.step.model, data, self.pads, self.step.execution)

    def loss(self) -> float:
        return float(self._loss)
