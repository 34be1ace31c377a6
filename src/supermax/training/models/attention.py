"""Scaled dot-product attention without the cuDNN backend.

cuDNN's attention is the fastest by some 4 % of a step, but it builds a plan for each combination
of dropout rate, batch size and sequence length. A search has new ones in every trial: building
the plans takes longer than they save, and they are never freed. The flash and memory-efficient
backends take these values as kernel arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.backends import cuda


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Turn the cuDNN backend off within the block, for all threads of the process.

    The backward pass belongs into the block too: with activation checkpointing it runs the forward
    pass again, which must use the same kernels to draw the same dropout masks.
    """
    before: bool = cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(before)
