"""One update of the weights: micro-steps that add gradients up, then clip and step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from supermax.training.attention import unplanned
from supermax.training.batches import Batch
from supermax.training.config import Config
from supermax.training.losses import class_loss, class_normaliser, span_loss, span_normaliser
from supermax.training.models import Model, Outputs


@dataclass(frozen=True)
class Execution:
    """How a trial is executed. Nothing here changes what it learns."""

    micro_batch: int | None = None
    """Sequences at a time; None: the whole effective batch."""
    checkpoint_activations: bool = False
    device: str = "cpu"
    precision: str = "fp32"
    threads: int | None = None
    evaluated: int = 1 << 14
    """Tokens that are evaluated at a time, padding included."""
    best_on_host: bool = False
    """The best epoch's weights are kept in the host's memory, where the device has none left."""
    captured: bool = True
    """Steps are recorded and replayed, where that is possible."""
    compiled: bool | None = None
    """Layers are compiled before their steps are recorded; None: where that pays."""
    memory: int | None = None
    """Bytes that it may take: of the device, or of memory beyond the libraries where there is
    none."""


def why_eager(execution: Execution) -> str | None:
    """A reason not to record steps, known before one is tried."""
    if not execution.device.startswith("cuda"):
        return "it runs on a CPU"
    if not execution.captured:
        return "it was asked for"
    if execution.precision == "fp16":
        return "fp16 decides on the host whether a step counts"
    if execution.checkpoint_activations:
        return "activations that are computed again cannot be recorded"
    return None


@dataclass(frozen=True)
class Shares:
    """What the sums of an effective batch are divided by, known before its first micro-batch: on
    the device, or numbers of the host, which nobody then has to wait for."""

    classes: Tensor
    spans: Tensor


def shares(labels: Tensor, starts: Tensor, weights: Tensor | None) -> Shares:
    return Shares(class_normaliser(labels, weights), span_normaliser(starts, starts))


def loss_of(
    outputs: Outputs, batch: Batch, share: Shares, config: Config, weights: Tensor | None
) -> Tensor:
    """The part of the effective batch's loss that this micro-batch contributes."""
    parts: list[Tensor] = []
    tilt = {"criteria": 0.0, "evidence": 1.0}.get(config.agent, config.loss.evidence_weight)
    if outputs.classes is not None and tilt < 1:
        losses = class_loss(outputs.classes, batch.labels, config.loss, weights)
        parts.append((1 - tilt) * losses.sum() / share.classes.to(losses.dtype))
    if outputs.starts is not None and outputs.ends is not None and tilt > 0:
        logits, targets = (outputs.starts, outputs.ends), (batch.starts, batch.ends)
        losses = span_loss(*logits, *targets, batch.inputs[-1].mask, config.loss)
        parts.append(tilt * losses.sum() / share.spans.to(losses.dtype))
    return torch.stack(parts).sum()


class EagerStep:
    """Forward, backward and update as PyTorch runs them, one operation after the other."""

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
        """After an update they stay where they are, and are 0."""
        self._trained = [p for p in model.parameters() if p.requires_grad]
        fused = bool(optimizer.defaults.get("fused"))
        self._scales_gradients = fused and not self.scaler.is_enabled()
        """The optimizer divides them in its step, which saves a pass over all of them."""

    def micro(self, batch: Batch, share: Shares) -> Tensor:
        """Add this micro-batch's gradients up; returns its part of the loss."""
        with unplanned():
            with autocast(self.execution):
                outputs = self.model(*batch.inputs)
            loss = loss_of(outputs, batch, share, self.config, self.weights)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Clip, step, and forget the gradients."""
        self.scaler.unscale_(self.optimizer)
        if self.config.train.clip is not None:
            self._clip(self.config.train.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)

    def _clip(self, most: float) -> None:
        if not self._scales_gradients:
            nn.utils.clip_grad_norm_(self._trained, most)
            return
        gradients = [p.grad for p in self._trained if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients).float()  # the kernel reads no other type
        self.optimizer.grad_scale = ((norm + 1e-6) / most).clamp(min=1.0)  # type: ignore[attr-defined]

    def state(self) -> dict[str, Any]:
        """The same whichever way steps are taken."""
        optimizer = self.optimizer.state_dict()
        groups = [
            {key: _PLAIN.get(key, value) for key, value in group.items()}
            for group in optimizer["param_groups"]
        ]
        optimizer = {**optimizer, "param_groups": groups}
        return {"optimizer": optimizer, "scaler": self.scaler.state_dict()}

    def can_load(self, state: dict[str, Any]) -> bool:
        """Say whether a saved state has this optimizer's groups of parameters. Earlier versions
        grouped the parameters of two encoders of different depths in another way."""
        now, then = self.optimizer.param_groups, state["optimizer"]["param_groups"]
        return [len(g["params"]) for g in now] == [len(g["params"]) for g in then]

    def load_state(self, state: dict[str, Any]) -> None:
        ways = [{k: v for k, v in g.items() if k in _PLAIN} for g in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, way in zip(self.optimizer.param_groups, ways, strict=True):
            group.update(way)
        self.scaler.load_state_dict(state["scaler"])


_PLAIN = {"lr": 0.0, "capturable": False, "step": 0}
"""What a group of parameters says of the way steps are taken: a rate is set before each, and a
group's count of steps, which none of the optimizers reads, goes on only one by one."""


def autocast(execution: Execution) -> AbstractContextManager[Any]:
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if execution.precision not in kinds:
        return nullcontext()
    device = execution.device.split(":")[0]
    return torch.autocast(device, dtype=kinds[execution.precision])


def avoid_onednn(execution: Execution) -> None:
    """Have torch take its own kernels for bf16 on a CPU for which oneDNN has none.

    On aarch64 torch tries oneDNN all the same, warns at the first larger product that it has
    failed, and turns it off for the rest of the process. This does so beforehand.
    """
    if execution.precision != "bf16" or execution.device != "cpu":
        return
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def on(batch: Batch, device: str) -> Batch:
    if device == "cpu":
        return batch
    return Batch(
        tuple(one.to(device) for one in batch.inputs),
        *(t.to(device, non_blocking=True) for t in (batch.labels, batch.starts, batch.ends)),
    )


def precision_like(wanted: str, device: str) -> str:
    """The wanted precision where the device computes in it at speed, else fp32."""
    if wanted == "bf16" and device.startswith("cuda"):
        return wanted if best_precision(device) == wanted else "fp32"
    return wanted if device.startswith("cuda") else "fp32"


def best_precision(device: str) -> str:
    """bf16 where the device computes in it, fp16 on older GPUs, fp32 on CPUs."""
    if not device.startswith("cuda"):
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
