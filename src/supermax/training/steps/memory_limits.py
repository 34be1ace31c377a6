"""Memory limits of this process, so that a large machine behaves like a smaller one."""

from __future__ import annotations

import functools
import os
import resource

import psutil
import torch

from supermax.training.steps.execution import Execution

_BLAS_BUFFER = 64 << 20  # bytes per thread


def limit_memory(execution: Execution) -> None:
    """Limit this process to `execution.memory` bytes from here on; None lifts an earlier limit.

    An allocation beyond it fails as on a machine of that size. On a GPU it is the limit of torch's
    allocator, which is also set to expandable segments against fragmentation. On a CPU it is
    RLIMIT_DATA, never above the limit that the process was started with.
    """
    if execution.device.startswith("cuda"):
        if not torch.cuda.is_initialized() and "PYTORCH_ALLOC_CONF" not in os.environ:  # type: ignore[no-untyped-call]
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        index = execution.device.partition(":")[2]
        device = int(index) if index else torch.cuda.current_device()
        total = torch.cuda.get_device_properties(device).total_memory
        fraction = 1.0 if execution.memory is None else min(1.0, execution.memory / total)
        torch.cuda.set_per_process_memory_fraction(fraction, device)
        return
    resident()  # cached now, before the first trial
    allowed, hard = allowed_before(), resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = allowed
    if execution.memory is not None:
        # Memory that earlier trials left in use does not count against this one.
        limit = max(libraries(), _data()) + execution.memory + unused()
        limit = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def in_use() -> int:
    """Return the bytes of GPU memory that this process has reserved; without a GPU, its resident
    memory in addition to what it had before its first trial."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved())
    return max(0, psutil.Process().memory_info().rss - resident())


def unused() -> int:
    """Return the bytes that count against RLIMIT_DATA although little of them is used: stacks of
    torch's threads (OpenMP and autograd), and the buffer that OpenBLAS allocates for each thread.
    OpenBLAS ends the process if it does not get it."""
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = 8 << 20 if soft == resource.RLIM_INFINITY else min(soft, 64 << 20)
    return (2 * stack + _BLAS_BUFFER) * torch.get_num_threads()


@functools.cache
def allowed_before() -> int:
    """Return the RLIMIT_DATA that this process was started with, in bytes."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


@functools.cache
def libraries() -> int:
    """Return the bytes of data that this process had before its first trial."""
    return _data()


def _data() -> int:
    return int(getattr(psutil.Process().memory_info(), "data", 0))  # on Linux only


@functools.cache
def resident() -> int:
    """Return the bytes of resident memory that this process had before its first trial."""
    return int(psutil.Process().memory_info().rss)
