"""Fixture of all comparisons."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread: tests run side by side."""
    torch.set_num_threads(1)
