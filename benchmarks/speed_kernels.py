"""What the kernels of a training step are for, by their names; a step's operations, counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from supermax.training.batches import Batch, Indices, collate
from supermax.training.models import Inputs
from supermax.training.prepare import Prepared
from supermax.training.steps import shares

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
"""The first that is found in a name, in small letters, says what a kernel is for."""


def part_of(kernel: str) -> str:
    name = kernel.lower()
    return next((part for part, found in _NAMES if re.search(found, name)), REST)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of them went."""
    total, until = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return float(total)


@dataclass(frozen=True)
class Operations:
    """Of the floating point, of one step."""

    products: float
    attention: float

    @property
    def all(self) -> float:
        return self.products + self.attention

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.products + other.products, self.attention + other.attention)

    def over(self, steps: int) -> Operations:
        return Operations(self.products / steps, self.attention / steps)


def counted(eager: Prepared, indices: Indices, rows: int, width: int) -> Operations:
    """Of one step on so many rows of a width, filled with these sequences; `eager` takes its steps
    one by one."""
    data = eager.train
    batch = widened(collate(data.views, eager.pads, data.rows(indices)), rows, width)
    share = shares(*data.targets(indices), eager.weights)
    device = eager.execution.device
    moved = Batch(
        tuple(Inputs(*(t.to(device) for t in (o.ids, o.mask, o.types))) for o in batch.inputs),
        *(t.to(device) for t in (batch.labels, batch.starts, batch.ends)),
    )
    eager.model.train()
    with FlopCounterMode(display=False) as counter:
        eager.step.micro(moved, share)
    eager.step.optimizer.zero_grad(set_to_none=True)
    by_name = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    attention = sum(n for op, n in by_name.items() if "attention" in op or "bmm" in op)
    return Operations(sum(by_name.values()) - attention, attention)


def widened(batch: Batch, size: int, width: int) -> Batch:
    """As a recorded step has it: all batches have one size. What is in it does not matter."""

    def wide(part: torch.Tensor) -> torch.Tensor:
        rows = part[torch.arange(size) % len(part)]
        return torch.nn.functional.pad(rows, (0, width - part.shape[1]), value=0)

    inputs = tuple(Inputs(*map(wide, (one.ids, one.mask, one.types))) for one in batch.inputs)
    places = torch.arange(size) % len(batch.labels)
    return Batch(inputs, batch.labels[places], batch.starts[places], batch.ends[places])


def useful(done: Operations, lengths: Sequence[int], size: int, width: int) -> Operations:
    """Without padding: of products the tokens' share, of attention that of their squares."""
    tokens = np.asarray(lengths, dtype=np.float64)
    return Operations(
        done.products * float(tokens.sum()) / (size * width),
        done.attention * float((tokens**2).sum()) / (size * width**2),
    )
