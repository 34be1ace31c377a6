"""Real CUDA faults in a cell, on a real GPU, beside cells that must not notice.

Skipped without CUDA. The objective imports torch itself, as a user's would.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("quick", "cuda")]


def train(trial: Any, steps: int = 40) -> float:
    """A small, exactly repeatable training run on the GPU."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(256, 64, device="cuda")
    y = x[:, :1] * 2.0
    model = torch.nn.Linear(64, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        trial.report(float(loss), step)
    return float(loss)


def out_of_memory() -> None:
    import torch

    hoard = []
    while True:
        hoard.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))


def device_assert() -> None:
    import torch

    table = torch.nn.Embedding(10, 4).cuda()
    table(torch.tensor([99], device="cuda"))  # the line that is to be named
    torch.cuda.synchronize()


def test_out_of_memory_is_reported_as_a_constraint(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.number == 0:
            out_of_memory()
        return train(trial)

    summary = supermax.optimize(study, objective, n_trials=3, retries=1, progress=False)
    first, *others = study.trials
    assert first.state is TrialState.PRUNED
    assert list(first.constraints) == ["supermax:device_oom"]
    assert summary.faults == {"device out of memory": 2}
    assert {t.state for t in others} == {TrialState.COMPLETE}
    assert others[0].user_attrs["supermax"]["device_reserved"] > 0


def test_a_device_side_assert_names_its_line(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.number == 0:
            device_assert()
        return train(trial)

    summary = supermax.optimize(study, objective, n_trials=2, progress=False)
    first, second = study.trials
    assert first.state is TrialState.FAIL
    assert summary.faults == {"device-side assert": 2}
    assert "the line that is to be named" in first.user_attrs["supermax"]["traceback"]
    assert second.state is TrialState.COMPLETE


@pytest.mark.parametrize("reuse", [False, True])
def test_neighbours_on_the_same_gpu_finish_with_unchanged_results(
    study: optuna.Study, reuse: bool
) -> None:
    crimes = {1: device_assert, 4: device_assert, 6: out_of_memory}

    def objective(trial: Any) -> float:
        if trial.number in crimes:
            train(trial, steps=5)
            crimes[trial.number]()
        return train(trial)

    supermax.optimize(
        study, objective, n_trials=12, workers=4, retries=1, reuse_cells=reuse, progress=False
    )
    good = [trial for trial in study.trials if trial.number not in crimes]
    assert {trial.state for trial in good} == {TrialState.COMPLETE}
    assert len({trial.value for trial in good}) == 1
    assert len({tuple(trial.intermediate_values.values()) for trial in good}) == 1


def test_a_hang_on_the_gpu_is_ended_and_its_memory_comes_back(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        import torch

        free, _ = torch.cuda.mem_get_info()
        trial.set_user_attr("free", free)
        if trial.number == 0:
            hoard = torch.empty(16 << 30, dtype=torch.uint8, device="cuda")
            while hoard.numel():
                torch.cuda._sleep(1_000_000)
        return 0.0

    supermax.optimize(study, objective, n_trials=2, trial_timeout=20.0, progress=False)
    first, second = study.trials
    assert first.state is TrialState.PRUNED
    assert second.user_attrs["free"] > first.user_attrs["free"] - (1 << 30)


def test_an_objective_that_holds_a_cuda_tensor_runs_in_new_interpreters(
    tmp_path: Path, url: str
) -> None:
    """In a program of its own, since this one must stay free of CUDA."""
    script = tmp_path / "holds.py"
    script.write_text(
        "import optuna, supermax, torch\n"
        "data = torch.ones(3, device='cuda')\n"
        f"study = optuna.create_study(storage={url!r}, study_name='holds')\n"
        "def objective(trial):\n"
        "    return float(data.sum())\n"
        "notes = []\n"
        "note = lambda event: notes.append(str(event))\n"
        "supermax.optimize(study, objective, n_trials=2, progress=note)\n"
        "assert [t.value for t in study.trials] == [3.0, 3.0]\n"
        "assert any('started CUDA' in note for note in notes), notes\n"
    )
    subprocess.run([sys.executable, str(script)], check=True)
