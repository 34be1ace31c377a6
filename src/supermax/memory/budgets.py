"""What a run may take of its devices, beside others.

Gpu, or this machine's memory ──▶ Budget ──available()──▶ bytes for all trials of a run
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection

import psutil

from supermax.memory.devices import Gpu, Nvml, gpus, machine_memory, named

_MARGIN = 256 << 20
"""Bytes of a device that nobody gets: what a driver takes for itself moves."""
_CELL_ITSELF = 512 << 20
"""Bytes of data that a process has before its trial begins."""
_HOST_SHARE = 0.85
"""Of the memory that is free when a run begins."""


def host_budget() -> int:
    """What trials on the CPU may take together: most of what is free now."""
    free = int(psutil.virtual_memory().available)
    total = machine_memory()
    return int(_HOST_SHARE * (min(free, total) if total is not None else free))


def own_limit() -> int | None:
    """What a process of this user may have beyond what it begins with, where that is limited."""
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return None if soft == resource.RLIM_INFINITY else max(1, soft - _CELL_ITSELF)


ON_CPU = {"MIMALLOC_ARENA_RESERVE": "65536"}  # KiB
"""Environment of trials on the CPU. Otherwise torch's allocator (mimalloc, on some machines)
takes a gigabyte ahead, which a limit would count as used."""


class HostBudget:
    """Memory of this machine, for trials on its CPU: most of what is free when a run begins, or
    as much as was said, and never more than there is."""

    def __init__(self, limit: int | None = None) -> None:
        bounds = [limit, machine_memory()] if limit is not None else [host_budget()]
        self.whole: int = min(bound for bound in (*bounds, own_limit()) if bound is not None)

    def available(self, device: str | None, pids: Collection[int], ours: int) -> int:
        return self.whole


class GpuBudget:
    """Memory of GPUs, less what others use. `limit` emulates smaller ones."""

    _FRESH = 1.0  # seconds for which a reading holds

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
        """Bytes by device that were in use while nothing of this run was there."""

    @property
    def whole(self) -> int:
        """What the largest of them has, if nobody else were there."""
        found = self._gpus()
        total = max((gpu.total - _MARGIN for gpu in found), default=self._limit or 0)
        return min(total, self._limit) if self._limit is not None else total

    def available(self, device: str | None, pids: Collection[int], ours: int) -> int:
        """Bytes of the device for this run, all trials together. `pids` are this run's own
        processes, which take up to `ours` together."""
        gpu = named(self._gpus(), device)
        if gpu is None:
            return self.whole
        if not ours:
            self._others[gpu.index] = gpu.used
        told = [gpu.processes[pid] for pid in pids if pid in gpu.processes]
        # In a container the driver does not tell whose memory it is.
        mine = sum(told) if told else min(ours, max(0, gpu.used - self._others.get(gpu.index, 0)))
        free = gpu.total - _MARGIN - max(0, gpu.used - mine)
        return min(free, self._limit) if self._limit is not None else free

    def _gpus(self) -> tuple[Gpu, ...]:
        now = self._clock()
        if self._last is None or now - self._last[0] > self._FRESH:
            found = self._read()
            if not found and self._last is not None:  # a driver that says nothing for once
                found = self._last[1]
            self._last = (now, found)
        return self._last[1]
