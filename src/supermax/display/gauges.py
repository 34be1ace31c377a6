"""How much memory the cells take, and how the GPUs are doing.

Reading takes a system call a process and now and then a slow driver, so whoever samples does it on
a thread of its own; everybody else looks at `last`. Nothing here is required: what cannot be read
is left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from supermax.memory.devices import Gpu, Nvml, machine_memory

INTERVAL = 1.0  # seconds between two samples, whoever asks


@dataclass(frozen=True)
class Readings:
    resident: Mapping[int, int] = field(default_factory=dict)  # bytes of a process
    on_device: Mapping[int, int] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    total: int | None = None  # memory that this machine, or this container, has


class Gauges:
    """`resident` and `devices` are the seams: what reads a process, and what reads the GPUs."""

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
        """Read all gauges, or give the last readings where these are fresh."""
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
    """Memory of a process that is in use now; None once it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, ValueError, OSError):
        return None
