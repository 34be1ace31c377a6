"""Memory that a run may use on its devices, beside other processes.

Gpu, or the host's memory ──▶ GpuBudget, HostBudget ──available()──▶ bytes for all trials of a run
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection

import psutil

from supermax.memory.devices import Gpu, Nvml, find_gpu, gpus, machine_memory

GPU_MARGIN = 256 << 20
"""Bytes of a GPU that are left free, since the driver's own use varies."""
_CELL_BASELINE = 512 << 20
"""Bytes of data that a cell has allocated before its trial begins."""
HOST_SHARE = 0.85
"""Share of the host's free memory that trials on the CPU may use."""


def host_budget() -> int:
    """Return the bytes that all trials on the CPU may use together: most of what is free now."""
    free = int(psutil.virtual_memory().available)
    total = machine_memory()
    return int(HOST_SHARE * (min(free, total) if total is not None else free))


def data_limit() -> int | None:
    """Return the bytes that RLIMIT_DATA leaves to a trial; None: no limit."""
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return None if soft == resource.RLIM_INFINITY else max(1, soft - _CELL_BASELINE)


ON_CPU = {"MIMALLOC_ARENA_RESERVE": "65536"}  # KiB
"""Environment variables of trials on the CPU. Without them torch's allocator (mimalloc, on some
machines) reserves a gigabyte ahead, which RLIMIT_DATA counts as used."""


class HostBudget:
    """Host memory for trials on the CPU: `limit` bytes, or most of what is free when a run begins;
    never more than the machine has."""

    def __init__(self, limit: int | None = None) -> None:
        bounds = [limit, machine_memory()] if limit is not None else [host_budget()]
        self.whole: int = min(bound for bound in (*bounds, data_limit()) if bound is not None)

    def available(self, device: str | None, pids: Collection[int], ours: int) -> int:
        return self.whole


class GpuBudget:
    """Memory of the GPUs that other processes do not use. `limit` (bytes) emulates smaller
    GPUs."""

    _CACHE_SECONDS = 1.0

    def __init__(
        self,
        limit: int | None = None,
        read: Callable[[], tuple[Gpu, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        nvml = Nvml()
        self._limit = limit
        self._read = read or (lambda: gpus(nvml))
        self._clock = clock
        self._last: tuple[float, tuple[Gpu, ...]] | None = None
        self._others: dict[int, int] = {}
        """Bytes by GPU that were in use while this run had no process on it."""

    @property
    def whole(self) -> int:
        """Bytes of the largest GPU without other processes; 0 where no GPU can be read."""
        found = self._gpus()
        total = max((gpu.total - GPU_MARGIN for gpu in found), default=self._limit or 0)
        return min(total, self._limit) if self._limit is not None else total

    def available(self, device: str | None, pids: Collection[int], ours: int) -> int:
        """Return the bytes of the device for all trials of this run together. `pids` are the run's
        own processes, which use up to `ours` bytes together."""
        gpu = find_gpu(self._gpus(), device)
        if gpu is None:
            return self.whole
        if not ours:
            self._others[gpu.index] = gpu.used
        reported = [gpu.processes[pid] for pid in pids if pid in gpu.processes]
        # In a container the driver does not report memory by process.
        mine = (
            sum(reported)
            if reported
            else min(ours, max(0, gpu.used - self._others.get(gpu.index, 0)))
        )
        free = gpu.total - GPU_MARGIN - max(0, gpu.used - mine)
        return min(free, self._limit) if self._limit is not None else free

    def _gpus(self) -> tuple[Gpu, ...]:
        now = self._clock()
        if self._last is None or now - self._last[0] > self._CACHE_SECONDS:
            found = self._read()
            if not found and self._last is not None:  # the driver failed this once
                found = self._last[1]
            self._last = (now, found)
        return self._last[1]
