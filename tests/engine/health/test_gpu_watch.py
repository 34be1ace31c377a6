"""GPUs that fail: taken out of service on evidence, while the run continues with the others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine import events
from supermax.engine.processes import gpu_probe
from supermax.engine.processes.gpu_probe import Probe
from supermax.errors import EnvironmentFault
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("quick")
SLOW = pytest.mark.slow
LAUNCH = (
    "CUDA error: unspecified launch failure\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)
ECC = "CUDA error: uncorrectable ECC error encountered"
NONE_THERE = "No CUDA GPUs are available"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
OOM = "CUDA out of memory. Tried to allocate 2 GiB"
ASSERT = "CUDA error: device-side assert triggered"
Codes = Callable[[str | None], Probe]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Codes], list[str | None]]:
    """Function that replaces the probe; returns the list of probed devices."""
    monkeypatch.setattr("supermax._util.system.count_gpus", lambda: None)

    def use(answer: Codes) -> list[str | None]:
        asked: list[str | None] = []

        def probe(device: str | None, tag: object) -> Probe:
            asked.append(device)
            return answer(device)

        monkeypatch.setattr(gpu_probe, "probe_gpu", probe)
        return asked

    return use


def dead(*names: str | None) -> Codes:
    return lambda device: Probe((100,) if device in names else (0,))


def here() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def failing_on(*names: str, text: str = LAUNCH) -> Callable[[Any], float]:
    def objective(trial: Any) -> float:
        trial.set_user_attr("device", here())
        if here() in names:
            raise RuntimeError(text)
        time.sleep(0.02)
        return 1.0

    return objective


def states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.get_trials()]


def lost(seen: list[events.Event]) -> list[str]:
    return [event.place for event in seen if isinstance(event, events.OutOfService)]


@pytest.mark.parametrize(
    "text", [LAUNCH, *(pytest.param(t, marks=SLOW) for t in (ECC, NONE_THERE))]
)
def test_a_lost_gpu_is_taken_out_and_its_trials_run_elsewhere(
    study: optuna.Study, probes: Any, text: str, tmp_path: Path
) -> None:
    probes(dead("1"))
    summary = supermax.optimize(
        study, failing_on("1", text=text), 6, workers=2, devices=["0", "1"], retries=0,
        run_dir=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert states(study) == [TrialState.COMPLETE] * 6
    assert {trial.user_attrs["device"] for trial in study.trials} == {"0"}
    assert set(summary.faults) == {"GPU lost"}
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["out_of_service"] == {"GPU 1": "CUDA finds no GPU there (code 100)"}


@pytest.mark.slow
def test_trials_that_run_on_a_lost_gpu_are_ended_and_run_elsewhere(
    study: optuna.Study, probes: Any, tmp_path: Path
) -> None:
    """One of them hangs, as a process on a lost GPU does."""
    probes(dead("1"))
    hanging = tmp_path / "hanging"

    def objective(trial: Any) -> float:
        if here() == "1" and not hanging.exists():
            hanging.touch()
            time.sleep(600)
        assert eventually(hanging.exists)
        if here() == "1":
            raise RuntimeError(ECC)
        return 1.0

    seen: list[events.Event] = []
    supermax.optimize(
        study, objective, 8, workers=4, devices=["0", "1"], retries=0, progress=seen.append
    )
    assert states(study) == [TrialState.COMPLETE] * 8
    assert lost(seen) == ["GPU 1"]
    assert sum(isinstance(e, events.FaultSeen) and e.kind == "GPU lost" for e in seen) == 2


@pytest.mark.parametrize("text", [ILLEGAL, *(pytest.param(t, marks=SLOW) for t in (ASSERT, OOM))])
def test_an_error_of_a_trial_leaves_its_gpu_in_service(
    study: optuna.Study, probes: Any, text: str
) -> None:
    asked = probes(dead())

    def objective(trial: Any) -> float:
        if trial.number >= 4:
            raise RuntimeError(text)
        return 1.0

    seen: list[events.Event] = []
    supermax.optimize(
        study, objective, 8, workers=2, devices=["0", "1"], retries=1, progress=seen.append
    )
    assert states(study)[:4] == [TrialState.COMPLETE] * 4
    assert TrialState.COMPLETE not in states(study)[4:]
    assert lost(seen) == []
    assert bool(asked) == (text == ILLEGAL)


@pytest.mark.slow
def test_a_gpu_on_which_trials_fail_that_succeed_elsewhere_is_taken_out(
    study: optuna.Study, probes: Any
) -> None:
    """It passes every probe."""
    probes(dead())
    seen: list[events.Event] = []
    supermax.optimize(
        study, failing_on("1"), 12, workers=2, devices=["0", "1"], progress=seen.append
    )
    assert states(study) == [TrialState.COMPLETE] * 12
    assert lost(seen) == ["GPU 1"]
    faults = [e for e in seen if isinstance(e, events.FaultSeen)]
    assert 3 <= len(faults) <= 5


@pytest.mark.slow
def test_one_worker_retries_on_the_other_gpu(study: optuna.Study, probes: Any) -> None:
    probes(dead())
    supermax.optimize(study, failing_on("0"), 5, devices=["0", "1"], progress=False)
    assert states(study) == [TrialState.COMPLETE] * 5


def test_without_a_gpu_left_the_run_ends_and_continues_later(
    study: optuna.Study, probes: Any, tmp_path: Path
) -> None:
    probes(dead("0", "1"))
    bad = failing_on("0", "1")
    with pytest.raises(EnvironmentFault, match=r"No GPU of this run is left.*GPU 0: .*GPU 1: "):
        supermax.optimize(study, bad, 4, workers=2, devices=["0", "1"], progress=False)
    assert set(states(study)) == {TrialState.RUNNING}
    supermax.optimize(study, failing_on(), 4, devices=["0"], retries=0, progress=False)
    assert states(study) == [TrialState.COMPLETE] * 4


@pytest.mark.slow
def test_the_only_gpu_is_watched_too_if_none_was_named(study: optuna.Study, probes: Any) -> None:
    probes(dead(None))

    def objective(trial: Any) -> float:
        raise RuntimeError(NONE_THERE)

    with pytest.raises(EnvironmentFault, match="the GPU: CUDA finds no GPU there"):
        supermax.optimize(study, objective, 4, progress=False)


def test_a_probe_that_raises_says_nothing_about_the_gpu(study: optuna.Study, probes: Any) -> None:
    """The trial that waits for it goes on."""

    def full(device: str | None) -> Probe:
        raise OSError("No space left on device")

    probes(full)
    supermax.optimize(study, failing_on("0"), 1, devices=["0"], retries=0, progress=False)
    assert states(study) == [TrialState.FAIL]


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_probe(study: optuna.Study, probes: Any) -> None:
    started = time.monotonic()

    def slow(device: str | None) -> Probe:
        time.sleep(5)
        return Probe((0,))

    probes(slow)
    supermax.optimize(
        study, failing_on("0"), 4, devices=["0"], timeout=0.5, retries=1, progress=False
    )
    assert time.monotonic() - started < 4


@pytest.mark.slow
def test_a_planner_places_retries_on_the_other_gpu(study: optuna.Study, probes: Any) -> None:
    class Room:
        def provide(self, trial: Any, failed: Any) -> Any:
            return supermax.engine.jobs.provision.Provision(1, {"micro_batch": 1})

        def room(self, occupied: Any) -> int | None:
            return 10

    probes(dead("1"))
    supermax.optimize(
        study, failing_on("1"), 6, workers=2, devices=["0", "1"], planner=Room(), retries=0,
        progress=False,
    )  # fmt: skip
    assert states(study) == [TrialState.COMPLETE] * 6
