"""Cells that share a real GPU through CUDA's multi-process service: what one does wrong stays
with it, and nothing of the service outlives the run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import optuna
import psutil
import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine.processes import mps
from supermax.memory.sharing import share_of_each
from supermax.results.records import read_record
from supermax.search.gpu_share import check_in_process
from tests.conftest import eventually
from tests.gpu.test_cuda_faults import device_assert, out_of_memory, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("quick", "cuda"),
    pytest.mark.skipif(shutil.which(mps.CONTROL) is None, reason="needs CUDA's service"),
]


def busy(seconds: float = 2.0) -> None:
    """Keep the GPU at work, so that somebody is when a neighbour goes wrong."""
    import torch

    x, end = torch.randn(2048, 2048, device="cuda"), time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            x = (x @ x).clamp(-1, 1)
        torch.cuda.synchronize()


def process_names() -> list[str]:
    """Return the names of all processes; one that ends meanwhile has none."""
    return [process.info["name"] or "" for process in psutil.process_iter(["name"])]


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


CRIMES = {1: device_assert, 3: out_of_memory, 5: killed}


def test_faults_stay_with_the_cell_that_has_them(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.number in CRIMES and trial.attempt == 1:
            train(trial, steps=5)
            CRIMES[trial.number]()
        busy()
        return train(trial)

    told: list[str] = []
    with mps.shared(told.append) as on:
        assert on, told
        summary = supermax.optimize(
            study, objective, n_trials=12, workers=4, retries=1, reuse_cells=True, progress=False
        )
    assert {t.state for t in study.trials if t.number not in CRIMES} == {TrialState.COMPLETE}
    good = [trial for trial in read_record(study).trials if trial.number not in CRIMES]
    assert [(trial.number, [str(fault) for fault in trial.faults]) for trial in good] == [
        (trial.number, []) for trial in good
    ]
    curves = {
        tuple(t.intermediate_values.values()) for t in study.trials if t.number not in CRIMES
    }
    assert len(curves) == 1
    assert set(summary.faults) >= {"device-side assert", "device out of memory"}
    assert eventually(lambda: not [n for n in process_names() if "cuda-mps" in n])


PRODUCT = """
import torch
x, y = (torch.randn(64, 768), torch.randn(768, 2304))
x, y = x.bfloat16(), y.bfloat16()
products = {"gpu": x.cuda() @ y.cuda(), "exact": x.double() @ y.double()}
difference = (products["gpu"].cpu().double() - products["exact"]).norm()
print(not difference <= 0.02 * products["exact"].norm())
"""
"""Prints whether a matrix product differs from that of the CPU."""


@pytest.mark.parametrize("share", sorted({share_of_each(n, 1 << 40) for n in range(1, 17)}))
def test_products_are_right_with_the_shares_that_cells_get(share: int) -> None:
    with mps.shared(print):
        found = check_in_process({**os.environ, mps.SHARE: str(share)})
    assert found.wrong == 0, found
    assert found.checked > 500


def test_wrong_products_are_found() -> None:
    with mps.shared(print):
        for share in (19, 40, 67, 73):
            environment = {**os.environ, mps.SHARE: str(share)}
            command = [sys.executable, "-c", PRODUCT]
            printed = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            if printed.stdout.strip() == "True":
                assert check_in_process(environment).wrong > 0
                return
    pytest.skip("this GPU computes this product correctly with all of these shares")
