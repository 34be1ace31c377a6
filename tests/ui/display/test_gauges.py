"""Gauges of memory and GPUs: sampled at intervals, never required."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from supermax.memory import devices
from supermax.memory.devices import Gpu, Nvml, machine_memory
from supermax.ui.display.gauges import Gauges, resident_memory
from tests.ui.display.test_display import Clock


class FakeNvml:
    """Fake of the NVML library with two GPUs, one of which lacks some readings."""

    def __init__(self) -> None:
        self.broken = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.broken:
            raise RuntimeError("GPU is lost")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=10 + handle, total=100)

    def nvmlDeviceGetName(self, handle: int) -> Any:  # noqa: N802
        return b"old library" if handle else "H200"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:  # noqa: N802
        return [
            SimpleNamespace(pid=5, usedGpuMemory=4),
            SimpleNamespace(pid=6, usedGpuMemory=None),
        ]


def test_processes_are_read_at_most_once_a_second() -> None:
    clock, asked = Clock(), list[int]()

    def resident(pid: int) -> int | None:
        asked.append(pid)
        return None if pid == 2 else pid * 10

    some = Gauges(resident, lambda: (), clock)
    assert some.sample([1, 2]).resident == {1: 10}
    clock.now += 0.9
    assert some.sample([1, 2, 3]) is some.last
    assert asked == [1, 2]
    clock.now += 0.2
    assert some.sample([3]).resident == {3: 30}


def test_a_process_that_has_ended_has_no_memory() -> None:
    size, total = resident_memory(os.getpid()), machine_memory()
    assert size is not None
    assert total is not None
    assert 1 << 20 < size < total
    assert resident_memory(2**22 + 1) is None


def test_total_memory_is_the_limit_of_the_container(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(devices, "_CGROUP_LIMIT", limit)
    limit.write_text("1048576\n")
    assert machine_memory() == 1 << 20
    limit.write_text("max\n")
    assert (machine_memory() or 0) > 1 << 20


def test_reads_all_gpus() -> None:
    told = {5: 4}
    first, second = Nvml(lambda _: FakeNvml()).read()
    assert first == Gpu(0, "H200", 10, 100, 0.87, processes=told)
    assert second == Gpu(1, "old library", 11, 100, None, processes=told)
    both = Gauges(lambda _: None, lambda: (first, second), Clock()).sample([])
    assert both.on_device == {5: 8}


def test_without_library_or_driver_there_are_no_gpus() -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    assert Nvml(missing).read() == ()
    card = FakeNvml()
    nvml = Nvml(lambda _: card)
    assert len(nvml.read()) == 2
    card.broken = True
    assert nvml.read() == ()
    card.broken = False
    assert len(nvml.read()) == 2  # a driver that was there may come back
