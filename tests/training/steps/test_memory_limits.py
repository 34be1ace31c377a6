"""A process held to a budget: from what it has now, and never beyond what it came with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supermax._util import system

pytestmark = pytest.mark.skipif(not system.LINUX, reason="the limit of data is Linux's")
CODE = """
import resource, sys
MIB = 1 << 20
if sys.argv[1] != "none":
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]) * MIB, resource.RLIM_INFINITY))
import torch
from supermax._util import system
from supermax.training.steps.memory_limits import limit_memory
from supermax.training.steps.execution import Execution

limit_memory(Execution(memory=600 * MIB))
left = torch.ones(400 * MIB // 4)  # what an earlier trial has left in use
limit_memory(Execution(memory=50 * MIB))
limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
print((limit - system.data_size()) // MIB)
torch.ones(40 * MIB // 4).sum()
torch.mm(torch.ones(500, 500), torch.ones(500, 500))
limit_memory(Execution())
print(resource.getrlimit(resource.RLIMIT_DATA)[0] // MIB)
"""


def run(limit: str) -> list[int]:
    command = [sys.executable, "-c", CODE, limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
def test_memory_in_use_does_not_count_against_the_next_trial() -> None:
    room, lifted = run("none")
    assert 50 <= room < 600
    assert lifted < 0  # no limit


@pytest.mark.slow
def test_an_existing_limit_is_never_exceeded() -> None:
    assert run("6000")[1] == 6000
