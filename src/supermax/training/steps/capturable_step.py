"""Training step with static tensors, for CUDA graph capture.

    begin() ──▶ prepare_capture() ──▶ micro() … ──▶ update()

A graph reads and writes the addresses that it was captured with. Learning rates, optimizer state
and bf16 copies of the weights are therefore created before capture and then changed in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from supermax.training.optim.bf16_weights import Bf16Copies
from supermax.training.optim.fused_adamw import FusedAdamW, fused, why_unavailable
from supermax.training.optim.schedules import set_learning_rates
from supermax.training.steps.batches import Batch
from supermax.training.steps.step import LossDenominators, TrainingStep

CAPTURABLE_OPTIMIZERS = ("adamw", "adafactor", "lion")
"""Optimizers that read their learning rate from a tensor on the device and whose state begins at
0: `_create_state` relies on both."""
_MIN_ROWS = 4096
"""Least number of input rows of a linear layer to allow for: DeBERTa applies layers to its
relative positions too, however small a batch is."""


class CapturableStep:
    """Training step with static tensors, for CUDA graph capture: learning rates, optimizer state
    and bf16 copies stay at their addresses."""

    def __init__(self, step: TrainingStep, *, single_micro: bool) -> None:
        """`single_micro`: every effective batch is one micro-batch."""
        self.captured = step.config.optim.name in CAPTURABLE_OPTIMIZERS
        """The optimizer's update can be captured; otherwise only micro-steps are."""
        self.one_graph = single_micro and self.captured
        """A micro-step and its update are one graph. Gradients are then intermediate tensors of
        that graph; otherwise they accumulate at addresses that its replays share."""
        self._is_adamw = step.config.optim.name == "adamw"
        self._step = step
        self._trained = [p for p in step.model.parameters() if p.requires_grad]
        self._bf16: Bf16Copies | None = None
        self._fused: FusedAdamW | None = None
        self._rates: list[Tensor] = []

    def begin(self, rows: int) -> None:
        """Prepare an epoch; the weights may have been loaded anew. `rows`: largest number of input
        rows of a linear layer in any epoch."""
        if self._bf16 is None and self._step.execution.precision == "bf16":
            self._bf16 = Bf16Copies(self._step.model, max(rows, _MIN_ROWS))
        if self.captured and not self._rates:
            for group in self._step.optimizer.param_groups:
                rate = torch.zeros((), device=self._step.execution.device)
                group["lr"] = rate
                self._rates.append(rate)
            self._set_capturable(True)
        self._refresh()

    def prepare_capture(self) -> None:
        """Create what the graph of a micro-step needs."""
        self._step.keep_gradients = not self.one_graph
        if self.captured:
            self._create_state()
        if self._bf16 is not None and self._is_adamw and self._fused is None:
            self._fused = fused(self._step.optimizer, self._bf16)

    def allocate_buffers(self) -> None:
        """Create the buffers of a graph that contains an update."""
        if self._fused is not None:
            self._fused.allocate_buffers()

    @property
    def why_unfused(self) -> str | None:
        """Reason why AdamW runs without the fused kernel; None: it has it, or needs none."""
        return why_unavailable() if self._is_adamw and self._fused is None else None

    def micro(self, batch: Batch, denominators: LossDenominators) -> Tensor:
        """Accumulate the gradients of a micro-batch; return its contribution to the loss."""
        if self._bf16 is None:
            return self._step.micro(batch, denominators)
        with self._bf16.in_use():
            loss = self._step.micro(batch, denominators)
        # The fused kernel reads bf16 gradients directly. They are converted to fp32 for any other
        # optimizer, for accumulation, which would lose too much in bf16, and where a weight has
        # an fp32 gradient too, because it was used outside of its layer.
        has_fp32 = any(weight.grad is not None for weight in self._bf16.of)
        if self._fused is None or not self.one_graph or has_fp32:
            self._bf16.add_gradients()
        return loss

    def update(self, factor: Tensor) -> None:
        """Update the weights at `factor` times the base learning rates; to be captured."""
        for rate, base in zip(self._rates, self._step.base_rates, strict=True):
            rate.copy_(factor * base)
        if self._fused is None:
            self._step.update()
            self._refresh()
        else:
            self._fused(self._step.config.train.clip)
            self.clear_gradients()

    def update_now(self, factor: float) -> None:
        """Update the weights now, with an optimizer that cannot be captured."""
        set_learning_rates(self._step.optimizer, self._step.base_rates, factor)
        self._step.update()
        self._refresh()

    def clear_gradients(self) -> None:
        """Clear gradients: set them to None where micro-step and update are one graph, which
        allocates its own, else to 0 in place."""
        self._step.optimizer.zero_grad(set_to_none=self.one_graph)
        if self._bf16 is not None:
            self._bf16.clear_gradients()

    def switch_to_eager(self) -> None:
        """Release what only captured steps need; all further steps are eager."""
        self._step.keep_gradients = False
        self._step.optimizer.zero_grad(set_to_none=True)
        self._set_capturable(False)
        self._bf16 = self._fused = None

    def _refresh(self) -> None:
        if self._bf16 is not None:
            self._bf16.refresh()

    def _create_state(self) -> None:
        """Create the optimizer's state for parameters that have none yet.

        Torch optimizers create it in their first step. If that step were captured, the graph would
        contain the initialisation and reset the state to 0 in every replay. A step with zero
        gradients at a learning rate of 0 creates it here. Neither weights nor other state change,
        weight decay included, since it is scaled by the learning rate.
        """
        optimizer = self._step.optimizer
        stateless = [p for p in self._trained if not optimizer.state.get(p)]
        if not stateless:
            return
        with _groups_unchanged(optimizer):
            for parameter in stateless:
                parameter.grad = torch.zeros_like(parameter)
            for rate in self._rates:
                rate.zero_()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for parameter in stateless:  # that step must not count, e.g. for bias correction
            for value in optimizer.state[parameter].values():
                value.zero_()

    def _set_capturable(self, capturable: bool) -> None:
        """Set the flag of torch optimizers that have it. With it they keep their step counts on
        the device: a count on the CPU would be a constant of the graph."""
        for group in self._step.optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = capturable


@contextlib.contextmanager
def _groups_unchanged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore parameter groups after the block: some optimizers count their steps there."""
    saved = [dict(group) for group in optimizer.param_groups]
    try:
        yield
    finally:
        for group, before in zip(optimizer.param_groups, saved, strict=True):
            group.clear()
            group.update(before)
