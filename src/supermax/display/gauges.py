"""How much memory the cells take, and how the GPUs are doing.

Reading takes a system call a process and now and then a slow driver, so whoever samples does it on
a thread of its own; everybody else looks at `last`. Nothing here is required: what cannot be read
is left out.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

INTERVAL = 1.0  # seconds between two samples, whoever asks
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    used: int
    total: int
    busy: float | None = None  # share of the time in which it computed


@dataclass(frozen=True)
class Readings:
    resident: Mapping[int, int] = field(default_factory=dict)  # bytes of a process
    on_device: Mapping[int, int] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    total: int | None = None  # memory that this machine, or this container, has


Devices = tuple[Mapping[int, int], tuple[Gpu, ...]]


class Gauges:
    """`resident` and `devices` are the seams: what reads a process, and what reads the GPUs."""

    def __init__(
        self,
        resident: Callable[[int], int | None] | None = None,
        devices: Callable[[], Devices] | None = None,
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
        on_device, gpus = self._devices()
        self.last = Readings(found, on_device, gpus, self.last.total or machine_memory())
        return self.last


def resident_memory(pid: int) -> int | None:
    """Memory of a process that is in use now; None once it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, ValueError, OSError):
        return None


def machine_memory() -> int | None:
    """What there is to share among the cells: a container may have less than its machine."""
    try:
        total = int(psutil.virtual_memory().total)
    except (psutil.Error, OSError):
        return None
    try:
        return min(total, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no limit, or no such file
        return total


class Nvml:
    """NVIDIA's own library, where somebody installed `pynvml`; without it there are no GPUs."""

    def __init__(self, load: Callable[[str], Any] = importlib.import_module) -> None:
        self._load = load
        self._nvml: Any = None
        self._gone = False

    def read(self) -> Devices:
        if self._gone:
            return {}, ()
        try:
            if self._nvml is None:
                nvml = self._load("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            return self._look(self._nvml)
        except Exception:  # not installed, no driver, or a driver that has gone away
            self._gone = True
            return {}, ()

    @staticmethod
    def _look(nvml: Any) -> Devices:
        by_process: dict[int, int] = {}
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            name = nvml.nvmlDeviceGetName(handle)
            name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            rates = _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
            busy = None if rates is None else rates.gpu / 100
            gpus.append(Gpu(index, name, int(memory.used), int(memory.total), busy))
            for process in _optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
                if process.usedGpuMemory:  # None where the driver does not tell
                    size = by_process.get(process.pid, 0) + int(process.usedGpuMemory)
                    by_process[int(process.pid)] = size
        return by_process, tuple(gpus)


def _optional(read: Callable[[Any], Any], handle: Any) -> Any:
    """Some cards do not tell all."""
    try:
        return read(handle)
    except Exception:
        return None
