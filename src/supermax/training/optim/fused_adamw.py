"""AdamW for weights with bf16 copies: clip, step and write the copies in one pass (Triton).

    gradients (bf16 or fp32), state of torch.optim.AdamW ──FusedAdamW()──▶ weights, state, copies

Torch's AdamW reads fp32 gradients, so bf16 gradients are cast before it, and the weights to bf16
after it. With the product that writes a gradient, that moves 46 bytes of memory for each weight;
this kernel moves 32. The state is that of torch.optim.AdamW, so eager steps can continue from it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax._util.text import in_short
from supermax.training.optim.bf16_weights import ALIGNMENT, Bf16Copies

BLOCK, WARPS = 1024, 8
"""Elements of one tensor per program of the kernel, and its warps of 32 threads."""


def fused(optimizer: torch.optim.Optimizer, copies: Bf16Copies) -> FusedAdamW | None:
    """Return the fused step; None where it is not available. `why_unavailable` then has the
    reason, unless only this optimizer's tensors are not aligned."""
    global _why
    if _why is not None or not (torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ):
        return None
    try:
        from supermax.training.optim.fused_adamw_kernel import adamw

        made = FusedAdamW(optimizer, copies, adamw)
        if not made.aligned:
            return None
        made.warm_up()
        return made
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _why = _explain(error)
        return None


_why: str | None = None
"""Reason why the kernel failed in this process, which is not tried again."""


def why_unavailable() -> str | None:
    """Return why the kernel cannot run in this process; None: it can, or was not tried."""
    return _why


def cache_kernels_in(folder: Path) -> None:
    """Cache the compiled kernel in `folder`, unless TRITON_CACHE_DIR is set already."""
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder))


def _explain(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "Triton is not installed (pip install triton)"
    if isinstance(error, PermissionError):
        return f"{in_short(error)} (TRITON_CACHE_DIR may name a folder that can be written)"
    if isinstance(error, subprocess.CalledProcessError) or "C compiler" in str(error):
        return "it takes a C compiler and the headers of Python (gcc and python3-dev)"
    return in_short(error)


class Kernel(Protocol):
    """Triton kernel: indexed by its grid, it returns a launcher."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...


class FusedAdamW:
    """AdamW step with clipping. `kernel`: as in fused_adamw_kernel.py. The optimizer's state must
    exist: the kernel gets its addresses."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, copies: Bf16Copies, kernel: Kernel
    ) -> None:
        self._kernel, self._bf16 = kernel, copies
        groups = [group for group in optimizer.param_groups for _ in group["params"]]
        self._weights: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        states = [optimizer.state[weight] for weight in self._weights]
        self._steps = [state["step"] for state in states]
        self._beta1, self._beta2 = groups[0]["betas"]
        self._eps = groups[0]["eps"]
        device = self._weights[0].device
        of_weights = [copies.of.get(weight) for weight in self._weights]
        # Addresses, since one launch works on all tensors. They stay valid: weights, state, copies
        # and learning rates are only ever changed in place.
        rows = [
            [w.data_ptr(), s["exp_avg"].data_ptr(), s["exp_avg_sq"].data_ptr(),
             0 if copy is None else copy.value.data_ptr(), g["lr"].data_ptr(), w.numel()]
            for w, s, copy, g in zip(self._weights, states, of_weights, groups, strict=True)
        ]  # fmt: skip
        self.aligned = not any(address % ALIGNMENT for row in rows for address in row[:4])
        """All tensors are aligned as the kernel requires."""
        self._table = torch.tensor(rows, device=device)
        self._decays = torch.tensor([float(g["weight_decay"]) for g in groups], device=device)
        self._blocks = torch.from_numpy(_blocks([w.numel() for w in self._weights])).to(device)
        self._addresses: list[tuple[Tensor, Tensor]] = []
        """Addresses of the gradients on the CPU and on the device, a pair for each graph."""

    def allocate_buffers(self) -> None:
        """Allocate the table of gradient addresses for a graph that is about to be captured.

        Each graph has gradients at addresses of its own. The copy of the table from pinned memory
        to the device is part of the graph and runs in every replay, so its buffers must live as
        long as the graph and must not be shared with another.
        """
        device = torch.zeros(len(self._weights), dtype=torch.int64, device=self._table.device)
        cpu = torch.zeros(len(self._weights), dtype=torch.int64)
        self._addresses.append((cpu.pin_memory() if device.is_cuda else cpu, device))

    def warm_up(self) -> None:
        """Compile and load the kernel, which is not allowed during capture. All gradient addresses
        are 0, so it changes nothing."""
        self.allocate_buffers()
        ones = torch.ones(len(self._weights), device=self._table.device)
        for bf16_gradients in (False, True):
            self._launch(ones[0], ones, ones, bf16_gradients=bf16_gradients)
        self._addresses.clear()

    @torch.no_grad()
    def __call__(self, clip: float | None) -> None:
        """Update the weights, with gradients clipped to the total norm `clip`; None: unclipped.

        Everything is computed on the device, step counts and bias corrections included, so it can
        be captured. Gradients are divided as they are read, as with `TrainingStep._clip`.
        """
        copies = [self._bf16.of.get(weight) for weight in self._weights]
        bf16 = [copy.gradient if copy is not None else None for copy in copies]
        has_bf16 = any(gradient is not None for gradient in bf16)
        gradients = [
            gradient if has_bf16 and copy is not None else weight.grad
            for weight, copy, gradient in zip(self._weights, copies, bf16, strict=True)
        ]
        gradients = [
            g if g is None or g.data_ptr() % ALIGNMENT == 0 else g.clone() for g in gradients
        ]
        present = [gradient for gradient in gradients if gradient is not None]
        scale = (
            _total_norm(present).add(1e-6).div(clip).clamp(min=1.0)
            if clip is not None
            else present[0].new_ones(())
        )
        updated = [s for s, g in zip(self._steps, gradients, strict=True) if g is not None]
        torch._foreach_add_(updated, 1.0)
        counts = torch.stack(self._steps).double()
        first, second = (1 - beta**counts for beta in (self._beta1, self._beta2))
        # Written by the CPU during capture, not by a replay: the graph's gradients do not move.
        self._addresses[-1][0].copy_(
            torch.tensor([0 if g is None else g.data_ptr() for g in gradients])
        )
        self._launch(scale.float(), first.float(), second.sqrt().float(), bf16_gradients=has_bf16)

    def _launch(
        self, scale: Tensor, first: Tensor, second: Tensor, *, bf16_gradients: bool
    ) -> None:
        cpu, device = self._addresses[-1]
        device.copy_(cpu, non_blocking=True)
        run = self._kernel[(len(self._blocks),)]
        with torch.cuda.device(device.device) if device.is_cuda else nullcontext():
            run(
                self._table, device, self._decays, self._blocks, scale, first, second,
                self._beta1, 1 - self._beta1, self._beta2, 1 - self._beta2, self._eps,
                BF16_GRADIENTS=bf16_gradients, BLOCK=BLOCK, num_warps=WARPS,
            )  # fmt: skip


def _blocks(sizes: list[int]) -> NDArray[np.int64]:
    """Return the tensor of each block and its first element in it [blocks, 2]."""
    counts = -(-np.array(sizes) // BLOCK)
    tensors = np.repeat(np.arange(len(sizes)), counts)
    numbers = np.arange(len(tensors)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([tensors, BLOCK * numbers], axis=1)


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients, accumulated in fp32: torch's `get_total_norm` would round
    those of bf16 gradients to bf16."""
    norms: list[Tensor] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        alike = [gradient for gradient in gradients if gradient.dtype == dtype]
        norms += torch._foreach_norm(alike, 2, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
