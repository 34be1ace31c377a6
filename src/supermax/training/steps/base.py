"""Eager training step: accumulate gradients over micro-batches, clip, step the optimizer.

Execution ──why_eager()──▶ None, or the reason why CUDA graphs are not used
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict

from supermax.training.config import Config
from supermax.training.models.assembly import Model, Outputs
from supermax.training.models.attention import without_cudnn_attention
from supermax.training.optim.losses import class_loss, class_normaliser, span_loss, span_normaliser
from supermax.training.optim.optimizers import check_grad_scale
from supermax.training.steps.batches import Batch


@dataclass(frozen=True)
class Execution:
    """Settings of how a trial is executed. None of them changes what is learned."""

    micro_batch: int | None = None
    """Sequences per forward and backward pass; None: the whole effective batch."""
    checkpoint_activations: bool = False
    """Activations are recomputed in the backward pass (gradient checkpointing)."""
    device: str = "cpu"
    precision: str = "fp32"
    """fp32, or bf16 or fp16 for autocast."""
    threads: int | None = None
    """Threads of torch on the CPU; None: as many as torch chooses."""
    evaluated: int = 1 << 14
    """Tokens per evaluation batch, padding included."""
    best_on_host: bool = False
    """The best epoch's weights are kept in CPU memory instead of GPU memory."""
    captured: bool = True
    """Steps are captured as CUDA graphs where that is possible; see `why_eager`."""
    compiled: bool | None = None
    """Layers are compiled before capture; None: where that is expected to save time."""
    memory: int | None = None
    """Bytes that the trial may use: of GPU memory, or on a CPU of main memory in addition to
    what the imported libraries use. None: no limit."""


def why_eager(execution: Execution) -> str | None:
    """Return why steps run eagerly; None where capturing them as CUDA graphs can be tried.

    Only reasons that are known in advance: an operation that does not support capture is found
    out by trying (`CudaGraphExecutor`).
    """
    if not execution.device.startswith("cuda"):
        return "runs on a CPU"
    if not execution.captured:
        return "CUDA graphs are turned off for this trial"
    if execution.precision == "fp16":
        # GradScaler skips steps with infinite gradients. For most optimizers the CPU decides
        # that, from a flag that it reads from the GPU.
        return "fp16 needs a gradient scaler, whose steps are not captured"
    if execution.checkpoint_activations:
        return "activation checkpointing does not support CUDA graph capture"
    return None


@dataclass(frozen=True)
class Normalisers:
    """Divisors of the summed losses of an effective batch.

    They are computed for the whole effective batch before its first micro-batch, so the gradients
    of micro-batches add up to those of the whole. Scalars on the CPU or on the device: neither
    needs a CPU-GPU synchronisation.
    """

    classes: Tensor
    spans: Tensor


def batch_normalisers(labels: Tensor, starts: Tensor, weights: Tensor | None) -> Normalisers:
    """Return the divisors for an effective batch; `weights` are those of the classes."""
    return Normalisers(class_normaliser(labels, weights), span_normaliser(starts))


def loss_of(
    outputs: Outputs,
    batch: Batch,
    normalisers: Normalisers,
    config: Config,
    weights: Tensor | None,
) -> Tensor:
    """Return this micro-batch's contribution to the loss of its effective batch."""
    parts: list[Tensor] = []
    span_weight = {"criteria": 0.0, "evidence": 1.0}.get(config.agent, config.loss.evidence_weight)
    if outputs.classes is not None and span_weight < 1:
        losses = class_loss(outputs.classes, batch.labels, config.loss, weights)
        parts.append((1 - span_weight) * losses.sum() / normalisers.classes.to(losses.dtype))
    if outputs.starts is not None and outputs.ends is not None and span_weight > 0:
        logits, targets = (outputs.starts, outputs.ends), (batch.starts, batch.ends)
        losses = span_loss(*logits, *targets, batch.inputs[-1].mask, config.loss)
        parts.append(span_weight * losses.sum() / normalisers.spans.to(losses.dtype))
    return torch.stack(parts).sum()


class StepState(TypedDict):
    optimizer: StateDict
    scaler: StateDict


class EagerStep:
    """Forward, backward and update in eager mode: the reference for CUDA graphs.

    Captured steps call the same methods, so both run the same operations.
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

    def micro(self, batch: Batch, normalisers: Normalisers) -> Tensor:
        """Accumulate the gradients of a micro-batch; return its contribution to the loss."""
        with without_cudnn_attention():
            with autocast(self.execution):
                outputs = self.model(*batch.inputs)
            loss = loss_of(outputs, batch, normalisers, self.config, self.weights)
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


def autocast(execution: Execution) -> AbstractContextManager[object]:
    """Return the autocast context of the precision; one that does nothing for fp32.

    It is entered and left inside of a captured function. Autocast drops its cache of cast weights
    on leaving, so every graph contains the casts that it needs, and a replay casts the current
    weights.
    """
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if execution.precision not in dtypes:
        return nullcontext()
    device = execution.device.split(":")[0]
    return torch.autocast(device, dtype=dtypes[execution.precision])


def avoid_onednn(execution: Execution) -> None:
    """Turn oneDNN off for bf16 on a CPU for which it has no bf16 kernels.

    On aarch64 torch tries oneDNN all the same, warns at the first larger matrix product that it
    failed, and turns it off for the rest of the process. Turning it off first avoids the warning.
    """
    if execution.precision != "bf16" or execution.device != "cpu":
        return
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def precision_like(wanted: str, device: str) -> str:
    """Return `wanted` where the device supports it in hardware, else fp32."""
    if wanted == "bf16" and device.startswith("cuda"):
        return wanted if best_precision(device) == wanted else "fp32"
    return wanted if device.startswith("cuda") else "fp32"


def best_precision(device: str) -> str:
    """Return bf16 for GPUs that support it, fp16 for older GPUs, fp32 for CPUs."""
    if not device.startswith("cuda"):
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
