"""Which of torch's kernels attention is trained with.

cuDNN's are the fastest, by some 4 % of a step, but they are planned for one dropout. A search
tries another in every trial: each would be planned anew for every width, which takes longer than
it gains, many times longer where cells share a GPU, and no plan is ever forgotten. Others take a
dropout like any number.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from supermax.training.encoders import drops_attention

_FOR_ANY_DROPOUT = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def kernels(encoders: Iterable[Any], device: str) -> AbstractContextManager[None]:
    """In which these encoders are trained: forward, and backward too, where activations may be
    computed again."""
    if device.startswith("cuda") and any(drops_attention(encoder) for encoder in encoders):
        chosen: AbstractContextManager[None] = sdpa_kernel(_FOR_ANY_DROPOUT)
        return chosen
    return nullcontext()
