"""What every test of training gets."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run side by side, and what several threads add up depends on how many they are."""
    torch.set_num_threads(1)
