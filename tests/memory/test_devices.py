"""Memory budgets of devices: without what other processes use, and within the limit."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import psutil
import pytest

from supermax.memory import devices
from supermax.memory.budgets import GpuBudget, HostBudget, host_budget
from supermax.memory.devices import (
    Gpu,
    Nvml,
    find_gpu,
    from_nvidia_smi,
    machine_memory,
    named_gpus,
    visible_gpus,
)
from supermax.search import doctor
from tests.memory.specs import GIB, MIB

CARD = Gpu(0, "a card", 10 * GIB, 80 * GIB, uuid="GPU-abc", processes={5: 4 * GIB, 6: 6 * GIB})
GONE = 1 << 22  # more than there are numbers of processes


def budget(*cards: Gpu, limit: int | None = None) -> GpuBudget:
    return GpuBudget(limit, lambda: cards)


def test_memory_of_other_processes_is_subtracted() -> None:
    assert budget(CARD).available("0", {5}, 8 * GIB) == 74 * GIB - 256 * MIB
    assert budget(CARD).available("0", {5, 6}, 20 * GIB) == 80 * GIB - 256 * MIB
    assert budget(CARD, limit=24 * GIB).available("0", {5}, 8 * GIB) == 24 * GIB
    crowded = Gpu(0, "a card", 70 * GIB, 80 * GIB)
    assert budget(crowded, limit=24 * GIB).available("0", set(), 0) == 10 * GIB - 256 * MIB


def test_without_memory_by_process_the_reserved_memory_counts_as_ours() -> None:
    """In a container, the driver does not know its process numbers."""
    assert budget(CARD).available("0", {999}, 8 * GIB) == 78 * GIB - 256 * MIB
    assert budget(CARD).available("0", set(), 0) == 70 * GIB - 256 * MIB


def test_cards_are_found_by_number_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Gpu(1, "another", 0, 40 * GIB, uuid="GPU-def")
    assert find_gpu((CARD, other), "1") is other
    assert find_gpu((CARD, other), "GPU-def") is other
    assert find_gpu((CARD, other), "7") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert find_gpu((CARD, other), None) is other
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert find_gpu((CARD, other), None) is CARD
    assert budget(CARD, other).whole == 80 * GIB - 256 * MIB


def test_all_gpus_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Gpu(0, "A", 0, GIB, uuid="GPU-a"), Gpu(1, "B", 0, GIB))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(lambda: found) == ["GPU-a", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 3, GPU-b,3,")
    assert visible_gpus(lambda: found) == named_gpus(["all"]) == ["3", "GPU-b"]
    assert named_gpus(["0", "2"]) == ["0", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c,GPU-a,-1,2")
    assert named_gpus(["all"]) == ["MIG-c", "GPU-a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert named_gpus(["all"]) == []


def test_readings_are_cached_for_a_second() -> None:
    now, reads = [0.0], []

    def read() -> tuple[Gpu, ...]:
        reads.append(now[0])
        return (CARD,)

    some = GpuBudget(None, read, lambda: now[0])
    some.available("0", set(), 0)
    some.available("0", set(), 0)
    now[0] = 2.0
    some.available("0", set(), 0)
    assert reads == [0.0, 2.0]


def test_nvidia_smi_reports_the_same_as_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, GPU-abc, NVIDIA H200, 1024, 143771, 580.9'\necho nonsense\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    card = Gpu(0, "NVIDIA H200", 1024 * MIB, 143771 * MIB, uuid="GPU-abc", driver="580.9")
    assert from_nvidia_smi() == (card,)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert from_nvidia_smi() == ()


def test_one_failed_reading_keeps_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, answers = [0.0], [(CARD,), (), (CARD,)]
    some = GpuBudget(None, lambda: answers.pop(0), lambda: now[0])
    for _ in range(3):
        assert some.whole == 80 * GIB - 256 * MIB
        now[0] += 2
    program = tmp_path / "nvidia-smi"
    program.write_text("no program at all")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert from_nvidia_smi() == ()
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(devices, "_SMI_TIMEOUT", 0.2)
    assert from_nvidia_smi() == ()


def test_nvml_is_tried_again_if_it_has_worked_before() -> None:
    class Library:
        broken = False

        def nvmlInit(self) -> None:  # noqa: N802
            pass

        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            if self.broken:
                raise RuntimeError("GPU is lost")
            return 0

    library, asked = Library(), []
    nvml = Nvml(lambda name: asked.append(name) or library)  # type: ignore[func-returns-value]
    nvml.read()
    library.broken = True
    nvml.read()
    library.broken = False
    nvml.read()
    assert len(asked) == 2
    never = Nvml(lambda name: asked.append(name) or Library.missing)  # type: ignore[attr-defined]
    never.read()
    never.read()
    assert len(asked) == 3


def test_memory_used_before_the_run_counts_as_other_processes() -> None:
    """Without memory by process."""
    used = [30 * GIB]
    some = GpuBudget(
        None, lambda: (Gpu(0, "a card", used[0], 80 * GIB),), iter(range(99)).__next__
    )
    assert some.available("0", set(), 0) == 50 * GIB - 256 * MIB
    used[0] = 31 * GIB  # of 20 that were promised, one is taken
    assert some.available("0", {7}, 20 * GIB) == 50 * GIB - 256 * MIB


def test_rlimit_data_bounds_the_host_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 * GIB, 4 * GIB))
    assert HostBudget().whole == 3 * GIB - 512 * MIB
    assert HostBudget(GIB).whole == GIB
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    total = machine_memory()
    assert total is not None
    assert HostBudget(10**15).whole == total


def test_the_host_budget_is_most_of_the_free_memory() -> None:
    assert host_budget() > 0
    assert HostBudget(3 * GIB).available(None, set(), 0) == 3 * GIB


def test_the_doctor_lists_other_processes_on_the_gpu() -> None:
    with subprocess.Popen(["sleep", "60"]) as someone:
        there = {os.getpid(): GIB, someone.pid: 4 * GIB, GONE: 6 * GIB}
        card = Gpu(0, "a card", 11 * GIB, 80 * GIB, processes=there, driver="580.9")
        first, *others = doctor._gpu(card, "13.0")
        someone.kill()
    assert first.text == "GPU 0: a card, 69.0 GiB of 80.0 GiB free, CUDA 13.0, driver 580.9"
    assert first.state == doctor.GOOD
    me = psutil.Process().username()
    assert [other.text for other in others] == [
        f"4.0 GiB in use by process {someone.pid} (sleep of {me})",
        f"6.0 GiB in use by process {GONE}",
    ]
    crowded = Gpu(0, "a card", 70 * GIB, 80 * GIB)
    assert next(doctor._gpu(crowded, "13.0")).state == doctor.WARNING


def test_the_doctor_reports_mps_and_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(doctor, "find_spec", lambda _: object())
    (tmp_path / "Python.h").touch()
    turns, missing = doctor._acceleration()
    assert turns.text == "cells take turns on a GPU: there is no nvidia-cuda-mps-control"
    assert missing.state == doctor.WARNING
    assert missing.text.endswith("there is no C compiler (gcc or clang)")
    for name in ("nvidia-cuda-mps-control", "clang"):
        (tmp_path / name).touch(mode=0o755)
    shared, compiles = doctor._acceleration()
    assert shared.text == "several cells can share a GPU: mps: true, or --mps"
    assert (compiles.state, compiles.text) == (
        doctor.GOOD,
        "layers and updates can be compiled",
    )
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert [one.state for one in doctor._acceleration()] == [doctor.GOOD, doctor.WARNING]
    monkeypatch.delenv("CC")
    (tmp_path / "Python.h").unlink()
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    assert [*doctor._acceleration()][1].text.endswith("there is no Python.h, and no Triton")
