"""What every test of training gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run side by side, and what several threads add up depends on how many they are."""
    torch.set_num_threads(1)


@pytest.fixture
def same_bf16_everywhere() -> Iterator[None]:
    """Compute in bf16 as CPUs do for which oneDNN has no such kernels, on every CPU."""
    enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    yield
    torch.backends.mkldnn.enabled = enabled
