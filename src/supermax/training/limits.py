"""A process held to a budget of memory, so that a large machine behaves like a smaller one."""

from __future__ import annotations

import contextlib
import functools
import resource
from pathlib import Path

import torch

from supermax.training.steps import Execution


def hold_to(execution: Execution) -> None:
    """From here on this process gets no more than `execution.memory`; what asks for more fails as
    it would on a machine of that size. Without a budget an earlier one is lifted."""
    if execution.device.startswith("cuda"):
        named = execution.device.partition(":")[2]
        device = int(named) if named else torch.cuda.current_device()
        total = torch.cuda.get_device_properties(device).total_memory
        share = 1.0 if execution.memory is None else min(1.0, execution.memory / total)
        torch.cuda.set_per_process_memory_fraction(share, device)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = hard if execution.memory is None else libraries() + execution.memory
    if resource.RLIM_INFINITY not in (wanted, hard):
        wanted = min(wanted, hard)
    if wanted != soft:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


@functools.cache
def libraries() -> int:
    """Bytes of data that this process had before its first trial: they are not the trial's."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
