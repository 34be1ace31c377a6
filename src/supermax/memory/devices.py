"""Memory and processes of the GPUs, and memory of the host. Nothing here initialises CUDA.

NVML, or nvidia-smi ──▶ Gpu
"""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from supermax._util.attributes import ALL_GPUS

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SMI_TIMEOUT = 15.0
"""Seconds that nvidia-smi may take."""


@dataclass(frozen=True)
class Gpu:
    """State of a GPU at one moment."""

    index: int
    name: str
    used: int
    """Bytes in use, by all processes."""
    total: int
    """Bytes of memory."""
    busy: float | None = None
    """Utilisation from 0 to 1; None: unknown."""
    uuid: str = ""
    processes: Mapping[int, int] = field(default_factory=dict)
    """Bytes in use by process number; empty where the driver does not report them."""
    driver: str = ""
    """Version of the driver."""


class Nvml:
    """Reader of NVIDIA's management library. Finds no GPUs where `pynvml` is not installed."""

    def __init__(self, load: Callable[[str], ModuleType] = importlib.import_module) -> None:
        self._load = load
        self._nvml: ModuleType | None = None
        self._worked = self._unavailable = False

    def read(self) -> tuple[Gpu, ...]:
        if self._unavailable:
            return ()
        try:
            if self._nvml is None:
                nvml = self._load("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            found = _query(self._nvml)
            self._worked = True
        except Exception:  # not installed, no driver, or a driver that has gone away
            # After a success, try again on the next read: the driver may come back.
            self._nvml, self._unavailable = None, not self._worked
            return ()
        return found


def _query(nvml: ModuleType) -> tuple[Gpu, ...]:
    gpus = []
    driver = _text(_optional(nvml, "nvmlSystemGetDriverVersion"))
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = _optional(nvml, "nvmlDeviceGetUtilizationRates", handle)
        running = _optional(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
        by_process: Counter[int] = Counter()
        for process in running:
            if process.usedGpuMemory:  # None where the driver does not report it
                by_process[process.pid] += process.usedGpuMemory
        gpus.append(
            Gpu(
                index,
                _text(nvml.nvmlDeviceGetName(handle)),
                int(memory.used),
                int(memory.total),
                None if rates is None else rates.gpu / 100,
                _text(_optional(nvml, "nvmlDeviceGetUUID", handle)),
                by_process,
                driver,
            )
        )
    return tuple(gpus)


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _optional(nvml: ModuleType, query: str, *args: object) -> Any:
    """Return the result of a query; None where the GPU or the library does not support it."""
    try:
        return getattr(nvml, query)(*args)
    except Exception:
        return None


def from_nvidia_smi() -> tuple[Gpu, ...]:
    """Read the GPUs from nvidia-smi, which takes a second or two; () where it cannot be run."""
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "--query-gpu=index,uuid,name,memory.used,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError):  # broken, or it hangs
        return ()
    gpus = []
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 6 and parts[3].isdigit() and parts[4].isdigit():
            used, total = int(parts[3]) << 20, int(parts[4]) << 20
            gpus.append(Gpu(int(parts[0]), parts[2], used, total, uuid=parts[1], driver=parts[5]))
    return tuple(gpus)


def gpus(nvml: Nvml | None = None) -> tuple[Gpu, ...]:
    """Read all GPUs of the machine, from NVML or else from nvidia-smi."""
    return (nvml or Nvml()).read() or from_nvidia_smi()


def find_gpu(found: Collection[Gpu], device: str | None) -> Gpu | None:
    """Return the GPU that `device` names as CUDA_VISIBLE_DEVICES does, by number or UUID; for None
    the first visible one. None where there is no such GPU."""
    wanted = device if device is not None else os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    first = wanted.split(",")[0].strip()
    for gpu in found:
        if str(gpu.index) == first or (gpu.uuid and gpu.uuid.startswith(first or "?")):
            return gpu
    return None


def visible_gpus(found: Callable[[], tuple[Gpu, ...]] = gpus) -> list[str]:
    """Return all GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: by UUID where
    the driver reports it, because numbers change when a GPU falls off the bus."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        parts = (part.strip() for part in visible.split(","))
        seen = itertools.takewhile(lambda part: part != "-1", parts)  # it hides all that follow
        return list(dict.fromkeys(part for part in seen if part))
    return [gpu.uuid or str(gpu.index) for gpu in found()]


def named_gpus(wanted: list[str]) -> list[str]:
    """Return the GPUs that the setting `gpus` names, with "all" replaced by their names."""
    return visible_gpus() if wanted == [ALL_GPUS] else wanted


def machine_memory() -> int | None:
    """Return the bytes of host memory, or of the container's cgroup if that is less; None:
    unknown."""
    try:
        total = int(psutil.virtual_memory().total)
    except (psutil.Error, OSError):
        return None
    try:
        return min(total, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no limit, or no such file
        return total
