"""Probe of a GPU: results, time limit, and machines without a driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from supermax.engine.processes import cuda_check, gpu_probe
from supermax.engine.processes.gpu_probe import Probe, loss, probe_gpu


class Driver:
    """Driver library in which one function returns an error for one of two GPUs."""

    def __init__(self, fails: str = "", code: int = 0, of: int | None = None, gpus: int = 2):
        self.fails, self.code, self.of, self.gpus, self.index = fails, code, of, gpus, -1

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.gpus
            elif name == "cuDeviceGet":
                self.index = arguments[1]
            elif name == "cuMemcpyDtoH_v2":
                ctypes.memset(arguments[0], 0xA5, ctypes.sizeof(arguments[0]))
            fails = name == self.fails and self.of in (None, self.index)
            return self.code if fails else 0

        return call


@pytest.mark.parametrize(
    ("driver", "codes", "is_lost"),
    [
        (Driver(), [0, 0], False),
        (Driver("cuInit", 100), [100], True),
        (Driver("cuInit", 999), [999], True),
        (Driver("cuInit", 803), [803], True),
        (Driver(gpus=0), [100], True),
        (Driver("cuCtxSynchronize", 719, gpus=1), [719], True),
        (Driver("cuMemAlloc_v2", 214, gpus=1), [214], True),
        (Driver("cuMemAlloc_v2", 214, of=1), [0, 214], False),  # the other one works
        (Driver("cuDevicePrimaryCtxRetain", 2, gpus=1), [2], False),  # out of memory
        (Driver("cuDevicePrimaryCtxRetain", 46, gpus=1), [46], False),  # in exclusive use
        (Driver("cuInit", 807), [807], False),  # MPS is not ready
    ],
)
def test_each_result_is_judged(driver: Any, codes: list[int], is_lost: bool) -> None:
    assert cuda_check.check(driver) == codes
    assert (loss(Probe(tuple(codes))) is not None) == is_lost


def test_without_a_driver_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, where an objective raised a CUDA error."""
    if loss(probe_gpu(None, {})) is not None:
        pytest.skip("the driver of this machine is broken")
    assert loss(Probe(None)) is None


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os; print(f'[{os.environ[\"CUDA_VISIBLE_DEVICES\"]}]')", Probe((719,))),
        ("import time; time.sleep(60)", Probe(hung=True)),
        ("import os; os.abort()", Probe()),
        ("print('null')", Probe()),
        ("print('rubbish')", Probe()),
    ],
)
def test_a_probe_ends_in_time_whatever_its_process_does(
    program: str, expected: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "check.py"
    path.write_text(program)
    monkeypatch.setattr(cuda_check, "__file__", str(path))
    monkeypatch.setattr(gpu_probe, "TIMEOUT", 0.5)
    monkeypatch.setattr(gpu_probe, "PAUSE", 0.0)
    assert probe_gpu("719", {}) == expected
    assert (loss(expected) is not None) == (expected.hung or expected.codes is not None)


def test_a_gpu_is_lost_only_if_the_second_probe_confirms_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "check.py"
    path.write_text(
        f"from pathlib import Path\nonce = Path({str(tmp_path / 'once')!r})\n"
        "print('[0]' if once.exists() else '[719]')\nonce.touch()\n"
    )
    monkeypatch.setattr(cuda_check, "__file__", str(path))
    monkeypatch.setattr(gpu_probe, "PAUSE", 0.0)
    assert loss(probe_gpu("0", {})) is None
