"""What a device has, what is free of it, and who else uses it. Nothing here starts CUDA.

NVIDIA's library, or its program ──▶ Gpu
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_PATIENCE = 15.0
"""Seconds for NVIDIA's program."""


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    used: int
    total: int
    busy: float | None = None  # share of the time in which it computed
    uuid: str = ""
    processes: Mapping[int, int] = field(default_factory=dict)  # bytes by process
    driver: str = ""  # its version


class Nvml:
    """NVIDIA's own library, where somebody installed `pynvml`, or else its program; without
    either there are no GPUs."""

    def __init__(self, load: Callable[[str], Any] = importlib.import_module) -> None:
        self._load = load
        self._nvml: Any = None
        self._seen = self._gone = False

    def read(self) -> tuple[Gpu, ...]:
        if self._gone:
            return ()
        try:
            if self._nvml is None:
                nvml = self._load("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            found = _look(self._nvml)
            self._seen = True
        except Exception:  # not installed, no driver, or a driver that has gone away
            self._nvml, self._gone = None, not self._seen  # what was there may come back
            return ()
        return found


def _look(nvml: Any) -> tuple[Gpu, ...]:
    gpus = []
    driver = _text(_optional(getattr(nvml, "nvmlSystemGetDriverVersion", None)) or "")
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
        running = _optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        by_process: dict[int, int] = {}
        for process in running:
            if process.usedGpuMemory:  # None where the driver does not tell
                size = by_process.get(int(process.pid), 0) + int(process.usedGpuMemory)
                by_process[int(process.pid)] = size
        gpus.append(
            Gpu(
                index,
                _text(nvml.nvmlDeviceGetName(handle)),
                int(memory.used),
                int(memory.total),
                None if rates is None else rates.gpu / 100,
                _text(_optional(getattr(nvml, "nvmlDeviceGetUUID", None), handle) or ""),
                by_process,
                driver,
            )
        )
    return tuple(gpus)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _optional(read: Callable[..., Any] | None, *of: Any) -> Any:
    """Some cards do not tell all."""
    try:
        return None if read is None else read(*of)
    except Exception:
        return None


def by_program() -> tuple[Gpu, ...]:
    """The same from nvidia-smi, which takes a second or two."""
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "--query-gpu=index,uuid,name,memory.used,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
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
    return (nvml or Nvml()).read() or by_program()


def named(found: Collection[Gpu], device: str | None) -> Gpu | None:
    """The GPU of that name, as CUDA_VISIBLE_DEVICES has them; None: the first that is visible."""
    wanted = device if device is not None else os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    first = wanted.split(",")[0].strip()
    for gpu in found:
        if str(gpu.index) == first or (gpu.uuid and gpu.uuid.startswith(first or "?")):
            return gpu
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
