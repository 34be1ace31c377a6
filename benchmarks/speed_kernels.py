"""Kinds of kernels by their names, and the operations of a training step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from supermax.training.models.assembly import Inputs
from supermax.training.prepare import Prepared
from supermax.training.steps.base import batch_normalisers
from supermax.training.steps.batches import Batch, Indices, collate

MATRIX, ATTENTION, OPTIMIZER = "matrix products", "attention", "optimizer"
CLIPPING, COPIES, REDUCTIONS = "clipping", "casts and copies", "reductions (bias gradients)"
ELEMENTS, EMBEDDING, REST = "norms, activations, dropout", "embedding", "rest"
PARTS = (
    MATRIX, ATTENTION, OPTIMIZER, CLIPPING, COPIES, REDUCTIONS, ELEMENTS, EMBEDDING, REST,
)  # fmt: skip
_NAMES = [
    (COPIES, r"copyfunctor"),
    (OPTIMIZER, r"adam|fusedoptimizer"),
    (CLIPPING, r"multi_tensor|foreach|lpnorm|normtwoops|clip"),
    (ATTENTION, r"fmha|flash|attention|sdpa|softmax"),
    (MATRIX, r"gemm|gemv|cutlass|nvjet|xmma|splitk|cublas|triton_tem|_bmm|_addmm"),
    (EMBEDDING, r"embedding|index|gather|scatter|segment|radix|sort|unique"),
    (ELEMENTS, r"layer_?norm|gammabeta|gradinput|gelu|dropout|tanh|erf|philox"),
    (REDUCTIONS, r"reduce|triton_(red|per)_|cunn_.*sum"),
    (COPIES, r"copy|memcpy|memset|fill|catarray|transpose"),
    (ELEMENTS, r"elementwise|triton_|_kernel_cuda"),
]
"""Kinds by pattern: the first that matches the lower-case name of a kernel."""


def part_of(kernel: str) -> str:
    name = kernel.lower()
    return next((part for part, found in _NAMES if re.search(found, name)), REST)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Return the time during which at least one of the spans is active."""
    total, until = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return float(total)


@dataclass(frozen=True)
class Operations:
    """Floating point operations of one step."""

    products: float
    attention: float

    @property
    def all(self) -> float:
        return self.products + self.attention

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.products + other.products, self.attention + other.attention)

    def over(self, steps: int) -> Operations:
        return Operations(self.products / steps, self.attention / steps)


def counted(eager: Prepared, indices: Indices, rows: int, length: int) -> Operations:
    """Count the operations of one eager step on `rows` rows of the padded length."""
    data = eager.train
    batch = resized(collate(data.views, eager.pads, data.rows(indices)), rows, length)
    normalisers = batch_normalisers(*data.targets(indices), eager.step.weights)
    device = eager.execution.device
    moved = Batch(
        tuple(Inputs(*(t.to(device) for t in (o.ids, o.mask, o.types))) for o in batch.inputs),
        *(t.to(device) for t in (batch.labels, batch.starts, batch.ends)),
    )
    eager.model.train()
    with FlopCounterMode(display=False) as counter:
        eager.step.micro(moved, normalisers)
    eager.step.optimizer.zero_grad(set_to_none=True)
    by_name = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    attention = sum(n for op, n in by_name.items() if "attention" in op or "bmm" in op)
    return Operations(sum(by_name.values()) - attention, attention)


def resized(batch: Batch, size: int, length: int) -> Batch:
    """Return a batch of the shape of a captured step; its contents do not matter."""

    def padded(part: torch.Tensor) -> torch.Tensor:
        rows = part[torch.arange(size) % len(part)]
        return torch.nn.functional.pad(rows, (0, length - part.shape[1]), value=0)

    inputs = tuple(Inputs(*map(padded, (one.ids, one.mask, one.types))) for one in batch.inputs)
    places = torch.arange(size) % len(batch.labels)
    return Batch(inputs, batch.labels[places], batch.starts[places], batch.ends[places])


def useful(done: Operations, lengths: Sequence[int], size: int, length: int) -> Operations:
    """Return operations without padding: products scale with tokens, attention with squares."""
    tokens = np.asarray(lengths, dtype=np.float64)
    return Operations(
        done.products * float(tokens.sum()) / (size * length),
        done.attention * float((tokens**2).sum()) / (size * length**2),
    )
