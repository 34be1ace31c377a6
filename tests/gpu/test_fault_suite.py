"""Faults of the fault suite that need a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]
FRAGMENTS = """
import torch, gpu_work
gpu_work.provoke("GPU fragmentation")
torch.cuda.empty_cache()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1])
"""


def test_fragmented_memory_cannot_be_returned() -> None:
    said = subprocess.run(
        [sys.executable, "-c", FRAGMENTS],
        cwd=ROOT / "benchmarks" / "faults",
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    allocated, reserved, total = map(int, said.split())
    assert allocated < 0.01 * total
    assert reserved > 0.09 * total
