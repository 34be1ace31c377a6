"""Memory of the cells, and memory and utilisation of the GPUs.

A sample takes a system call per process and sometimes waits for a slow driver. So one thread
samples, and all other readers use `last`. Values that cannot be read are left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from supermax.memory.devices import Gpu, Nvml, machine_memory

INTERVAL = 1.0  # seconds between two samples, at least


@dataclass(frozen=True)
class Readings:
    """Sample of all gauges."""

    resident: Mapping[int, int] = field(default_factory=dict)
    """Resident memory by process, in bytes."""
    on_device: Mapping[int, int] = field(default_factory=dict)
    """GPU memory by process, in bytes."""
    gpus: tuple[Gpu, ...] = ()
    total: int | None = None
    """Memory of this machine or container, in bytes; None if unknown."""


class Gauges:
    """Sampler of memory and GPUs. Tests inject `resident`, which reads a process, and `devices`,
    which reads the GPUs."""

    def __init__(
        self,
        resident: Callable[[int], int | None] | None = None,
        devices: Callable[[], tuple[Gpu, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last = Readings()
        self._resident = resident or resident_memory
        self._devices = devices or Nvml().read
        self._clock = clock
        self._sampled: float | None = None

    def sample(self, pids: Iterable[int]) -> Readings:
        """Read all gauges; return the last readings if they are younger than `INTERVAL`."""
        now = self._clock()
        if self._sampled is not None and now - self._sampled < INTERVAL:
            return self.last
        self._sampled = now
        found = {pid: size for pid in pids if (size := self._resident(pid)) is not None}
        gpus = self._devices()
        on_device: Counter[int] = Counter()
        for gpu in gpus:
            on_device.update(gpu.processes)
        self.last = Readings(found, on_device, gpus, self.last.total or machine_memory())
        return self.last


def resident_memory(pid: int) -> int | None:
    """Return the resident memory of a process in bytes; None if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, ValueError, OSError):
        return None
