"""Fixture of all comparisons."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread: tests run in parallel."""
    torch.set_num_threads(1)
