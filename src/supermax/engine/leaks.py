"""Whether a cell that served a trial is back where it was, on the device and on the host.

The host's baseline is taken after the first trial: what a process loads and keeps for all its
trials is no leak. Looking costs microseconds; only what looks like a leak is looked at closely.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supermax.engine import kernel

DEVICE = 64 << 20
"""Bytes of a device that may stay in use between two trials."""
HOST = 512 << 20
"""Bytes by which a process may grow from its first trial on."""
_POOLS = ("joblib.externals.loky.reusable_executor", "loky.reusable_executor")
_TRACKERS = (
    "multiprocessing.resource_tracker",
    "joblib.externals.loky.backend.resource_tracker",
    "loky.backend.resource_tracker",
)


class Baseline:
    """`kept` says how many bytes of the host the objective keeps on purpose, for later trials."""

    def __init__(self, kept: Callable[[], int] = lambda: 0) -> None:
        self._kept = kept
        self._device = device_in_use() or 0
        self._host: int | None = None

    def leaked(self) -> str | None:
        """What the last trial, or all of them together, left behind, if it is too much."""
        _give_back()
        device = self._more_device()
        if device > DEVICE:
            gc.collect()
            _give_back()
            device = self._more_device()
        if device > DEVICE:
            return f"{_mib(device)} of device memory are still in use after its trial"
        host = self._more_host()
        if host > HOST:
            gc.collect()
            trim()
            host = self._more_host()
        if host > HOST:
            return f"it has grown by {_mib(host)} of memory since its first trial"
        return None

    def _more_device(self) -> int:
        return (device_in_use() or 0) - self._device

    def _more_host(self) -> int:
        size = (kernel.resident_size() or 0) - self._kept()
        if self._host is None:
            self._host = size
        return size - self._host


@dataclass(frozen=True)
class Pool:
    """Processes, and threads of this one, that joblib keeps for its next call."""

    pids: frozenset[int] = frozenset()
    threads: tuple[Any, ...] = ()


def idle_pool() -> Pool:
    """Return what joblib keeps in this process, if it has nothing to do.

    It ends with the process. In a joblib that names things differently, it is not found and
    counts as left behind.
    """
    idle = [
        executor
        for executor in _found(_POOLS, "_executor")
        if not getattr(executor, "_pending_work_items", True)
    ]
    return Pool(
        frozenset(pid for executor in idle for pid in getattr(executor, "_processes", None) or ()),
        tuple(getattr(executor, "_executor_manager_thread", None) for executor in idle),
    )


def resource_trackers() -> set[int]:
    """Return the pids of the processes that clean up after multiprocessing and joblib."""
    trackers = _found(_TRACKERS, "_resource_tracker")
    return {pid for tracker in trackers if (pid := getattr(tracker, "_pid", None)) is not None}


def _found(modules: tuple[str, ...], name: str) -> list[Any]:
    """Return what these modules, where they are imported, have under `name`."""
    found = [getattr(sys.modules.get(module), name, None) for module in modules]
    return [thing for thing in found if thing is not None]


def device_in_use() -> int | None:
    """Bytes that tensors of this process take of its GPU; None where it uses none."""
    if (cuda := _cuda()) is None:
        return None
    return int(cuda.memory_allocated())


def _give_back() -> None:
    """Of a GPU, what is kept for later: others may need it now. So do the libraries for matrices,
    whose room counts as a tensor's."""
    if (cuda := _cuda()) is not None:
        with contextlib.suppress(AttributeError):
            sys.modules["torch"]._C._cuda_clearCublasWorkspaces()
        cuda.empty_cache()


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return torch.cuda


def trim() -> None:
    """Have the C library give back what is free of the heap."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
