"""A process held to a budget of memory, so that a large machine behaves like a smaller one."""

from __future__ import annotations

import functools
import os
import resource

import psutil
import torch

from supermax.training.steps import Execution

_BLAS = 64 << 20  # bytes


def hold_to(execution: Execution) -> None:
    """From here on this process gets no more than `execution.memory`; what asks for more fails as
    it would on a machine of that size. Without a budget an earlier one is lifted. A GPU's memory
    is taken in pieces that can grow, so that it does not fall apart."""
    if execution.device.startswith("cuda"):
        if not torch.cuda.is_initialized() and "PYTORCH_ALLOC_CONF" not in os.environ:  # type: ignore[no-untyped-call]
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        named = execution.device.partition(":")[2]
        device = int(named) if named else torch.cuda.current_device()
        total = torch.cuda.get_device_properties(device).total_memory
        share = 1.0 if execution.memory is None else min(1.0, execution.memory / total)
        torch.cuda.set_per_process_memory_fraction(share, device)
        return
    resident()
    allowed, hard = allowed_before(), resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = allowed
    if execution.memory is not None:
        # What earlier trials have left in use is not this one's to do without.
        wanted = max(libraries(), _data()) + execution.memory + unused()
        wanted = wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def in_use() -> int:
    """Bytes that this process has of its GPU, or of memory beyond the libraries where it uses
    none."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved())
    return max(0, psutil.Process().memory_info().rss - resident())


def unused() -> int:
    """Bytes that count although little of them is ever used: stacks of torch's threads (OpenMP's,
    and autograd's), and buffers that OpenBLAS takes for each thread, or ends the process."""
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = 8 << 20 if soft == resource.RLIM_INFINITY else min(soft, 64 << 20)
    return (2 * stack + _BLAS) * torch.get_num_threads()


@functools.cache
def allowed_before() -> int:
    """The limit that this process came with: somebody's own, and never exceeded."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


@functools.cache
def libraries() -> int:
    """Bytes of data that this process had before its first trial: they are not the trial's."""
    return _data()


def _data() -> int:
    return int(getattr(psutil.Process().memory_info(), "data", 0))  # Linux tells


@functools.cache
def resident() -> int:
    """The same, of what is in memory."""
    return int(psutil.Process().memory_info().rss)
