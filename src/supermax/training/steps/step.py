"""Training step: loss and gradients of micro-batches, gradient clipping, optimizer update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict

from supermax.agents import agent_of
from supermax.training.config import Config
from supermax.training.models.assembly import Model, Outputs
from supermax.training.models.attention import without_cudnn_attention
from supermax.training.optim.losses import (
    class_denominator,
    class_loss,
    label_loss,
    number_loss,
    span_denominator,
    span_loss,
)
from supermax.training.optim.optimizers import check_grad_scale
from supermax.training.steps.batches import Batch
from supermax.training.steps.execution import Execution, autocast


@dataclass(frozen=True)
class LossDenominators:
    """Denominators of the summed losses of an effective batch.

    They are computed for the whole effective batch before its first micro-batch, so the gradients
    of micro-batches add up to those of the whole. Scalars on the CPU or on the device: neither
    needs a CPU-GPU synchronisation.
    """

    classes: Tensor
    spans: Tensor


def loss_denominators(labels: Tensor, starts: Tensor, weights: Tensor | None) -> LossDenominators:
    """Return the denominators for an effective batch; `weights` are those of the classes."""
    return LossDenominators(class_denominator(labels, weights), span_denominator(starts))


def loss_of(
    outputs: Outputs,
    batch: Batch,
    denominators: LossDenominators,
    config: Config,
    weights: Tensor | None,
) -> Tensor:
    """Return this micro-batch's contribution to the loss of its effective batch."""
    parts: list[Tensor] = []
    agent = agent_of(config.agent)
    span_weight = config.loss.evidence_weight if len(agent.targets) > 1 else float(agent.spans)
    if outputs.classes is not None and span_weight < 1:
        if agent.numbers:
            losses = number_loss(outputs.classes, batch.labels, config.loss)
        else:
            loss = label_loss if agent.label_sets else class_loss
            losses = loss(outputs.classes, batch.labels, config.loss, weights)
        parts.append((1 - span_weight) * losses.sum() / denominators.classes.to(losses.dtype))
    if outputs.starts is not None and outputs.ends is not None and span_weight > 0:
        logits, targets = (outputs.starts, outputs.ends), (batch.starts, batch.ends)
        losses = span_loss(*logits, *targets, batch.inputs[-1].mask, config.loss)
        parts.append(span_weight * losses.sum() / denominators.spans.to(losses.dtype))
    return torch.stack(parts).sum()


class StepState(TypedDict):
    """State of a training step in a checkpoint."""

    optimizer: StateDict
    scaler: StateDict


class TrainingStep:
    """Forward and backward passes of micro-batches, and the optimizer update.

    The eager executor calls these methods directly. `CapturableStep` calls the same methods
    during capture, so both run the same operations.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        config: Config,
        weights: Tensor | None,
        execution: Execution,
    ) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config
        self.weights = weights
        self.execution = execution
        self.scaler = torch.amp.GradScaler(enabled=execution.precision == "fp16")
        self.base_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.keep_gradients = False
        """`update` sets gradients to 0 in place instead of to None. A graph that accumulates
        gradients needs it: a replay adds to the addresses that were captured."""
        self._trained = [p for p in model.parameters() if p.requires_grad]
        fused = bool(optimizer.defaults.get("fused"))
        self._scales_gradients = fused and not self.scaler.is_enabled()
        """Gradients are clipped inside the optimizer's kernel: see `_clip`. Not with fp16, where
        the gradient scaler uses `grad_scale` itself."""
        if self._scales_gradients and config.train.clip is not None:
            check_grad_scale(execution.device)

    def micro(self, batch: Batch, denominators: LossDenominators) -> Tensor:
        """Accumulate the gradients of a micro-batch; return its contribution to the loss."""
        with without_cudnn_attention():
            with autocast(self.execution):
                outputs = self.model(*batch.inputs)
            loss = loss_of(outputs, batch, denominators, self.config, self.weights)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Clip gradients, step the optimizer and clear the gradients."""
        self.scaler.unscale_(self.optimizer)
        if self.config.train.clip is not None:
            self._clip(self.config.train.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)

    def _clip(self, max_norm: float) -> None:
        """Clip the total gradient norm to `max_norm`, as `clip_grad_norm_` does.

        torch's AdamW(fused=True) divides every gradient by `optimizer.grad_scale` while it
        reads it (torch added that for GradScaler). Set to the reciprocal of clip_grad_norm_'s
        coefficient, it clips without a pass of its own that reads and writes all gradients. The
        norm is that of the whole effective batch, since `update` runs after its last micro-batch.
        The scale stays on the device, so nothing synchronises, and a captured step computes it
        anew in each replay."""
        if not self._scales_gradients:
            nn.utils.clip_grad_norm_(self._trained, max_norm)
            return
        gradients = [p.grad for p in self._trained if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients).float()  # the kernel reads float32 only
        self.optimizer.grad_scale = ((norm + 1e-6) / max_norm).clamp(min=1.0)  # type: ignore[attr-defined]

    def state(self) -> StepState:
        """Return the state of optimizer and scaler, the same for eager and captured steps."""
        optimizer = self.optimizer.state_dict()
        groups = [
            {key: _EXECUTION_KEYS.get(key, value) for key, value in group.items()}
            for group in optimizer["param_groups"]
        ]
        optimizer = {**optimizer, "param_groups": groups}
        return {"optimizer": optimizer, "scaler": self.scaler.state_dict()}

    def can_load(self, state: StepState) -> bool:
        """Return whether a saved state has this optimizer's parameter groups. Earlier versions
        grouped the parameters of two encoders of different depths differently."""
        now, then = self.optimizer.param_groups, state["optimizer"]["param_groups"]
        return [len(g["params"]) for g in now] == [len(g["params"]) for g in then]

    def load_state(self, state: StepState) -> None:
        """Load what `state` returned; the groups keep the settings of their own executor."""
        current = [
            {k: v for k, v in group.items() if k in _EXECUTION_KEYS}
            for group in self.optimizer.param_groups
        ]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, settings in zip(self.optimizer.param_groups, current, strict=True):
            group.update(settings)
        self.scaler.load_state_dict(state["scaler"])


_EXECUTION_KEYS = {"lr": 0.0, "capturable": False, "step": 0}
"""Keys of parameter groups that depend on the executor, with the values that are saved. The
learning rate is set before each update. A group's step count is not advanced by captured steps;
none of the optimizers reads it."""
