"""Memory leak detection in cells that run several trials, on the GPU and on the host.

The host's baseline is taken after the first trial: what a process loads and keeps for all its
trials is no leak. A check takes microseconds; only a suspected leak triggers garbage collection.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from supermax._util import system

DEVICE = 64 << 20
"""Bytes of GPU memory that may stay allocated between two trials."""
HOST = 512 << 20
"""Bytes by which a process may grow after its first trial."""
_POOLS = ("joblib.externals.loky.reusable_executor", "loky.reusable_executor")
_TRACKERS = (
    "multiprocessing.resource_tracker",
    "joblib.externals.loky.backend.resource_tracker",
    "loky.backend.resource_tracker",
)


class Baseline:
    """Memory that the process had before its trials.

    `cached_bytes` returns the bytes of host memory that the objective caches for later trials.
    """

    def __init__(self, cached_bytes: Callable[[], int]) -> None:
        self._cached_bytes = cached_bytes
        self._device = device_in_use() or 0
        self._host: int | None = None

    def leaked(self) -> str | None:
        """Describe memory above the limits that the trials so far have left; None: there is
        none."""
        _release_cached()
        device = self._device_growth()
        if device > DEVICE:
            gc.collect()
            _release_cached()
            device = self._device_growth()
        if device > DEVICE:
            return f"{_mib(device)} of device memory are still in use after its trial"
        host = self._host_growth()
        if host > HOST:
            gc.collect()
            trim()
            host = self._host_growth()
        if host > HOST:
            return f"it has grown by {_mib(host)} of memory since its first trial"
        return None

    def _device_growth(self) -> int:
        return (device_in_use() or 0) - self._device

    def _host_growth(self) -> int:
        size = (system.resident_size() or 0) - self._cached_bytes()
        if self._host is None:
            self._host = size
        return size - self._host


@dataclass(frozen=True)
class IdleWorkers:
    """Worker processes of joblib that wait for its next call, and the threads managing them."""

    pids: frozenset[int] = frozenset()
    threads: tuple[object, ...] = ()


def idle_workers() -> IdleWorkers:
    """Return the worker pool that joblib keeps in this process, if it is idle.

    The pool ends with the process. With a version of joblib that has other internal names it is
    not found and counts as left behind.
    """
    idle = [
        executor
        for executor in _found(_POOLS, "_executor")
        if not getattr(executor, "_pending_work_items", True)
    ]
    return IdleWorkers(
        frozenset(pid for executor in idle for pid in getattr(executor, "_processes", None) or ()),
        tuple(getattr(executor, "_executor_manager_thread", None) for executor in idle),
    )


def resource_trackers() -> set[int]:
    """Return the pids of the processes that clean up after multiprocessing and joblib."""
    trackers = _found(_TRACKERS, "_resource_tracker")
    return {pid for tracker in trackers if (pid := getattr(tracker, "_pid", None)) is not None}


def _found(modules: tuple[str, ...], name: str) -> list[object]:
    """Return the attribute `name` of those of these modules that are imported and have it."""
    found = [getattr(sys.modules.get(module), name, None) for module in modules]
    return [value for value in found if value is not None]


def device_in_use() -> int | None:
    """Return the bytes allocated by tensors on this process's GPU; None: it uses no GPU."""
    if (cuda := _cuda()) is None:
        return None
    return int(cuda.memory_allocated())


def _release_cached() -> None:
    """Return cached GPU memory to other processes: the allocator's free blocks, and cuBLAS
    workspaces, which count as allocated tensors."""
    if (cuda := _cuda()) is not None:
        with contextlib.suppress(AttributeError):
            sys.modules["torch"]._C._cuda_clearCublasWorkspaces()
        cuda.empty_cache()


def _cuda() -> ModuleType | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    cuda: ModuleType = torch.cuda
    return cuda


def trim() -> None:
    """Have the C library return free heap memory to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
