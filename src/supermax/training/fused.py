"""AdamW on weights that have halves: clip, step and new halves in one pass over all numbers.

    gradients (halves or not), state of torch.optim.AdamW ──FusedAdamW()──▶ weights, state, halves

Torch's own step reads gradients in full precision, which somebody has to make of halves before,
and halves of the weights after it: from the product that makes a gradient on, 46 bytes are moved
for each number, here 32. The state is torch's, step for step, so that any other way may go on from
it.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.training.halves import EVEN, Halves
from supermax.words import in_short

BLOCK, WARPS = 1024, 8
"""Numbers of one tensor that are moved at a time, and by how many times 32 threads."""


def fused(optimizer: torch.optim.Optimizer, halves: Halves) -> FusedAdamW | None:
    """None where it cannot be had; `why_not` then says why, unless it is for this optimizer's
    tensors alone."""
    global _why
    if _why is not None or not (torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ):
        return None
    try:
        from supermax.training.fused_kernel import adamw

        made = FusedAdamW(optimizer, halves, adamw)
        if not made.even:
            return None
        made.rehearse()
        return made
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _why = _in_words(error)
        return None


_why: str | None = None


def why_not() -> str | None:
    """Why it cannot be had in this process, after it was tried; None where it can."""
    return _why


def keep_in(folder: Path) -> None:
    """The kernel, for other processes, unless somebody has named another folder."""
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder))


def _in_words(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "Triton is not installed (pip install triton)"
    if isinstance(error, PermissionError):
        return f"{in_short(error)} (TRITON_CACHE_DIR may name a folder that can be written)"
    if isinstance(error, subprocess.CalledProcessError) or "C compiler" in str(error):
        return "it takes a C compiler and the headers of Python (gcc and python3-dev)"
    return in_short(error)


class FusedAdamW:
    """`kernel` as in fused_kernel.py. The optimizer's state has to be there."""

    def __init__(self, optimizer: torch.optim.Optimizer, halves: Halves, kernel: Any) -> None:
        self._kernel, self._halves = kernel, halves
        groups = [group for group in optimizer.param_groups for _ in group["params"]]
        self._weights: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        states = [optimizer.state[weight] for weight in self._weights]
        self._steps = [state["step"] for state in states]
        self._beta1, self._beta2 = groups[0]["betas"]
        self._eps = groups[0]["eps"]
        device = self._weights[0].device
        halved = [halves.of.get(weight) for weight in self._weights]
        rows = [
            [w.data_ptr(), s["exp_avg"].data_ptr(), s["exp_avg_sq"].data_ptr(),
             0 if half is None else half.value.data_ptr(), g["lr"].data_ptr(), w.numel()]
            for w, s, half, g in zip(self._weights, states, halved, groups, strict=True)
        ]  # fmt: skip
        self.even = not any(place % EVEN for row in rows for place in row[:4])
        """All is where the kernel can read it."""
        self._table = torch.tensor(rows, device=device)
        self._decays = torch.tensor([float(g["weight_decay"]) for g in groups], device=device)
        self._pieces = torch.from_numpy(_pieces([w.numel() for w in self._weights])).to(device)
        self._places: list[tuple[Tensor, Tensor]] = []

    def find_place(self) -> None:
        """For a recording: where its gradients are is told through a place of its own, which is
        read whenever it is replayed."""
        there = torch.zeros(len(self._weights), dtype=torch.int64, device=self._table.device)
        here = torch.zeros(len(self._weights), dtype=torch.int64)
        self._places.append((here.pin_memory() if there.is_cuda else here, there))

    def rehearse(self) -> None:
        """Load the kernel; with no gradients it does nothing."""
        self.find_place()
        ones = torch.ones(len(self._weights), device=self._table.device)
        for halves in (False, True):
            self._launch(ones[0], ones, ones, halves=halves)
        self._places.clear()

    @torch.no_grad()
    def __call__(self, clip: float | None) -> None:
        halves = [self._halves.of.get(weight) for weight in self._weights]
        found = [half.gradient if half is not None else None for half in halves]
        in_half = any(gradient is not None for gradient in found)
        gradients = [
            gradient if in_half and half is not None else weight.grad
            for weight, half, gradient in zip(self._weights, halves, found, strict=True)
        ]
        gradients = [g if g is None or g.data_ptr() % EVEN == 0 else g.clone() for g in gradients]
        there = [gradient for gradient in gradients if gradient is not None]
        scale = (
            _norm(there).add(1e-6).div(clip).clamp(min=1.0)
            if clip is not None
            else there[0].new_ones(())
        )
        moved = [s for s, g in zip(self._steps, gradients, strict=True) if g is not None]
        torch._foreach_add_(moved, 1.0)
        counts = torch.stack(self._steps).double()
        first, second = (1 - beta**counts for beta in (self._beta1, self._beta2))
        self._places[-1][0].copy_(
            torch.tensor([0 if g is None else g.data_ptr() for g in gradients])
        )
        self._launch(scale.float(), first.float(), second.sqrt().float(), halves=in_half)

    def _launch(self, scale: Tensor, first: Tensor, second: Tensor, *, halves: bool) -> None:
        here, there = self._places[-1]
        there.copy_(here, non_blocking=True)
        run = self._kernel[(len(self._pieces),)]
        with torch.cuda.device(there.device) if there.is_cuda else nullcontext():
            run(
                self._table, there, self._decays, self._pieces, scale, first, second,
                self._beta1, 1 - self._beta1, self._beta2, 1 - self._beta2, self._eps,
                HALVES=halves, BLOCK=BLOCK, num_warps=WARPS,
            )  # fmt: skip


def _pieces(sizes: list[int]) -> NDArray[np.int64]:
    """Which tensor each is of, and where in it it begins."""
    counts = -(-np.array(sizes) // BLOCK)
    which = np.repeat(np.arange(len(sizes)), counts)
    place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([which, BLOCK * place], axis=1)


def _norm(gradients: list[Tensor]) -> Tensor:
    """Of all together, added up in full precision, which torch's own does not do for halves."""
    norms: list[Tensor] = []
    for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
        some = [gradient for gradient in gradients if gradient.dtype == kind]
        norms += torch._foreach_norm(some, 2, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
