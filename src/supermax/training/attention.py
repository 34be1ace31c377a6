"""Attention without the kernels of cuDNN.

They are the fastest, by some 4 % of a step, but each is made for one dropout, one batch and one
width. A search tries others in every trial, and each time they would be made anew, which takes
longer than it gains; nor is one of them ever given back. Others take these numbers as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.backends import cuda


@contextmanager
def unplanned() -> Iterator[None]:
    """Forward and backward: activations may be computed again there. It holds for all threads of
    the process, as torch has it."""
    before: bool = cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(before)
