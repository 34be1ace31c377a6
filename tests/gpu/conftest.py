"""Fixtures of the tests on a real GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def cuda() -> None:
    """Skip without CUDA. Another process asks: this one must stay free of CUDA."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", code]).returncode:
        pytest.skip("no CUDA here")
