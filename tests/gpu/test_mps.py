"""Cells that share a real GPU through CUDA's multi-process service: what one does wrong stays
with it, and nothing of the service outlives the run."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Any

import optuna
import psutil
import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine.processes import mps
from supermax.results.records import read_record
from tests.conftest import eventually
from tests.gpu.test_cuda_faults import cuda, device_assert, out_of_memory, train

__all__ = ["cuda"]  # a fixture
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("quick"),
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
