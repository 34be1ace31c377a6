"""Execution settings of a trial, and what follows from device and precision.

Execution ──why_eager()──▶ None, or the reason why CUDA graphs are not used
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


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
