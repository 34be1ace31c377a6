"""A process held to a budget of memory, so that a large machine behaves like a smaller one."""

from __future__ import annotations

import resource

import torch

from supermax.training.steps import Execution


def hold_to(execution: Execution) -> None:
    """From here on this process gets no more than `execution.memory`; what asks for more fails as
    it would on a machine of that size. Without a budget an earlier one is lifted."""
    if execution.device.startswith("cuda"):
        device = torch.device(execution.device)
        total = torch.cuda.get_device_properties(device).total_memory
        share = 1.0 if execution.memory is None else min(1.0, execution.memory / total)
        torch.cuda.set_per_process_memory_fraction(share, device)
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = hard if execution.memory is None else execution.memory
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard) if soft != resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
