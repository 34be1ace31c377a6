"""GPUs in service, on a real GPU: no false alarm after real faults of trials."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine import events
from supermax.engine.processes.gpu_probe import Probe, loss, probe_gpu
from supermax.memory.devices import visible_gpus
from tests.gpu.test_cuda_faults import device_assert, out_of_memory, train

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("quick", "cuda")]


def illegal_access() -> None:
    """Read from an address that belongs to nothing, in a kernel."""
    import torch

    source = "template <typename T> T wild(T x) { return x + *reinterpret_cast<T*>(8); }"
    kernel = torch.cuda.jiterator._create_jit_fn(source)
    kernel(torch.zeros(8, device="cuda"))
    torch.cuda.synchronize()


def test_a_working_gpu_passes_its_probe() -> None:
    for device in (None, *visible_gpus()):
        result = probe_gpu(device, {})
        assert result.codes is not None
        assert set(result.codes) == {0}
        assert loss(result) is None


def test_a_gpu_that_does_not_exist_is_lost() -> None:
    assert loss(probe_gpu("63", {})) is not None


def test_a_full_gpu_is_not_lost(study: optuna.Study) -> None:
    """Nor does the probe of another process disturb the one that has filled it."""

    def objective(trial: Any) -> float:
        import torch

        hoard = []
        size = 1 << 30
        while size >= 1 << 21:
            try:
                hoard.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size >>= 1
        trial.set_user_attr("codes", list(probe_gpu(None, {}).codes or ()))
        return float(hoard[0][0] * 0)

    supermax.optimize(study, objective, 1, progress=False)
    (trial,) = study.trials
    assert loss(Probe(tuple(trial.user_attrs["codes"]))) is None


def test_real_faults_of_trials_leave_all_gpus_in_service(study: optuna.Study) -> None:
    faults = {1: device_assert, 3: illegal_access, 5: out_of_memory}

    def objective(trial: Any) -> float:
        if trial.number in faults:
            faults[trial.number]()
        return train(trial)

    seen: list[events.Event] = []
    devices = visible_gpus()
    assert devices
    supermax.optimize(
        study, objective, 8, workers=2 * len(devices), devices=devices, retries=1,
        progress=seen.append,
    )  # fmt: skip
    assert not [event for event in seen if isinstance(event, events.OutOfService)]
    good = [trial for trial in study.trials if trial.number not in faults]
    assert {trial.state for trial in good} == {TrialState.COMPLETE}
    found = [event for event in seen if isinstance(event, events.FaultSeen)]
    kinds = {event.kind for event in found}
    assert {"device-side assert", "CUDA error", "device out of memory"} <= kinds, [
        each.message for each in found if each.kind == "exception"
    ]
