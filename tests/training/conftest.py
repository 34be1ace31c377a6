"""Fixtures of all training tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread: tests run in parallel, and sums depend on the number of threads."""
    torch.set_num_threads(1)


@pytest.fixture
def same_bf16_everywhere() -> Iterator[None]:
    """Compute bf16 on every CPU as on those for which oneDNN has no such kernels."""
    enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    yield
    torch.backends.mkldnn.enabled = enabled
