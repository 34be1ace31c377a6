"""Trials with a LoRA adapter: every step executor, checkpoints, and resuming from them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from supermax._util.attributes import STATE
from supermax.training.checkpoint import read_checkpoint
from supermax.training.config import Config
from supermax.training.loop import Result, train
from supermax.training.optim import fused_adamw
from supermax.training.prepare import Prepared
from supermax.training.steps.compilation import Compiler, _key
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.executors import EagerExecutor
from tests import ROOT
from tests.few import quick_are
from tests.training.corpora import Quiet, Stopped, config, ready
from tests.training.eager_backend import EagerBackend
from tests.training.optim.test_fused_adamw import StandIn
from tests.training.steps.test_compilation import Backend

SILENT: dict[str, Any] = {"head": {"depth": 2, "dropout": 0.0}, "optim": {"lr": 1e-2}}


def lora(name: str = "tiny-bert", **parts: Any) -> Config:
    wanted: dict[str, Any] = {**SILENT, "adapter": {"name": "lora", "rank": 4}}
    for key, value in parts.items():
        wanted[key] = {**wanted.get(key, {}), **value}
    wanted["encoder"] = {"name": name, **wanted.get("encoder", {})}
    return config(**wanted)


def noisy(name: str = "tiny-bert", **parts: Any) -> Config:
    rates = {"encoder": {"dropout": 0.2, "attention_dropout": 0.1}, "adapter": {"dropout": 0.3}}
    return lora(name, **rates, **parts)


def same(one: Result, other: Result) -> bool:
    weights = all(torch.equal(one.weights[n], other.weights[n]) for n in one.weights)
    return weights and one.curve == other.curve and one.metrics == other.metrics


def losses(result: Result) -> list[float]:
    return [row["train_loss"] for row in result.curve]


# Step executors.


def captured(prepared: Prepared, compiler: Compiler | None = None) -> Prepared:
    eager = EagerExecutor(prepared.step, prepared.train, prepared.pads)
    return replace(prepared, executor=CudaGraphExecutor(eager, EagerBackend(), compiler))


@pytest.mark.parametrize("family", ["tiny-bert", "tiny-modernbert", "tiny-deberta"])
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
def test_captured_steps_train_as_eager_steps(
    tmp_path: Path, family: str, micro_batch: int | None
) -> None:
    wanted = lora(family, train={"effective_batch": 8})
    eager = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured(ready(tmp_path, wanted, micro_batch=micro_batch))
    frozen = {n: p.clone() for n, p in prepared.model.named_parameters() if not p.requires_grad}
    result = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    assert losses(result) == pytest.approx(losses(eager), rel=1e-4)
    assert all(torch.equal(prepared.model.get_parameter(n), w) for n, w in frozen.items())
    assert all(p.grad is None for p in prepared.model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "adafactor", "lion"])
def test_every_optimizer_trains_the_same_captured(tmp_path: Path, optimizer: str) -> None:
    wanted = lora(optim={"name": optimizer, "lr": 3e-3}, train={"effective_batch": 8})
    eager = train(ready(tmp_path, wanted), Quiet())
    result = train(captured(ready(tmp_path, wanted)), Quiet())
    assert losses(result) == pytest.approx(losses(eager), rel=1e-3)
    assert all(w.abs().max() > 0 for n, w in result.weights.items() if "lora_B" in n)


@pytest.mark.usefixtures("same_bf16_everywhere")
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
def test_bf16_copies_train_as_autocast(tmp_path: Path, micro_batch: int | None) -> None:
    """The adapter's matrices have bf16 copies; frozen weights are cast by autocast."""
    wanted, how = lora(), {"precision": "bf16", "micro_batch": micro_batch}
    eager = train(ready(tmp_path, wanted, **how), Quiet())
    prepared = captured(ready(tmp_path, wanted, **how))
    result = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    assert losses(result) == pytest.approx(losses(eager), rel=2e-2)
    copies = prepared.executor._capturable._bf16  # type: ignore[attr-defined]
    adapters = {p for n, p in prepared.model.named_parameters() if ".lora_" in n}
    assert adapters <= set(copies.of)
    assert all(weight.requires_grad for weight in copies.of)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own looking
def test_layers_with_an_adapter_are_compiled(tmp_path: Path) -> None:
    torch.compiler.reset()
    wanted = lora(train={"effective_batch": 8})
    eager = train(ready(tmp_path, wanted), Quiet())
    backend = Backend()
    prepared = ready(tmp_path, wanted, compiled=True)
    prepared = captured(prepared, Compiler(backend))
    result = train(prepared, Quiet())
    torch.compiler.reset()
    assert prepared.executor.how == "compiled, CUDA graphs"
    assert backend.graphs > 0
    assert losses(result) == pytest.approx(losses(eager), rel=1e-4)


def test_compiled_layers_serve_equal_adapters_only(tmp_path: Path) -> None:
    """Rank and scaling are constants of compiled code; dropout rates are not."""

    def key(**adapter: Any) -> str:
        prepared = ready(tmp_path, lora(adapter=adapter), n=4)
        return _key(prepared.model.encoders[0].model, prepared.execution)

    base = key(dropout=0.1)
    assert key(dropout=0.2) == base
    others = [key(dropout=0.1, rank=8), key(dropout=0.1, ratio=1.0), key(), key(name="none")]
    assert len({base, *others}) == 5


@pytest.mark.usefixtures("same_bf16_everywhere")
def test_the_fused_kernel_updates_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, made = lora(), []

    def fused(optimizer: Any, copies: Any) -> Any:
        made.append(fused_adamw.FusedAdamW(optimizer, copies, StandIn()))
        made[-1].warm_up()
        return made[-1]

    eager = train(ready(tmp_path, wanted, precision="bf16"), Quiet())
    monkeypatch.setattr("supermax.training.steps.capturable_step.fused", fused)
    prepared = captured(ready(tmp_path, wanted, precision="bf16"))
    result = train(prepared, Quiet())
    assert made
    assert losses(result) == pytest.approx(losses(eager), rel=2e-2)


# Checkpoints.


@pytest.mark.parametrize("stop_at", quick_are([3], [1, 3, 4, 7]))
def test_an_interrupted_trial_resumes_bitwise(tmp_path: Path, stop_at: int) -> None:
    whole = train(ready(tmp_path, noisy()), Quiet())
    folder = tmp_path / "state"
    folder.mkdir()
    with pytest.raises(Stopped):
        train(ready(tmp_path, noisy()), Quiet(stop_at), folder)
    prepared = ready(tmp_path, noisy())
    saved = read_checkpoint(folder / STATE)
    assert saved is not None
    assert saved["model"].keys() == prepared.model.saved_state().keys()
    assert (folder / STATE).stat().st_size < 0.5 * 4 * sum(
        p.numel() for p in prepared.model.parameters()
    )
    torch.manual_seed(12345)  # whatever the new process has drawn meanwhile
    np.random.seed(3)
    rest = Quiet()
    assert same(train(prepared, rest, folder), whole)
    assert len(rest.values) <= 2


def test_a_trial_whose_encoder_has_changed_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint lacks the encoder's weights, so it must not be combined with others."""
    with pytest.raises(Stopped):
        train(ready(tmp_path, noisy()), Quiet(3), tmp_path)
    monkeypatch.setattr("supermax.training.loop.weights_mark", lambda source: ["another"])
    rest = Quiet()
    result = train(ready(tmp_path, noisy()), rest, tmp_path)
    assert len(rest.values) == result.epochs == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from supermax.training.loop import train
from tests.training.corpora import Quiet, ready
from tests.training.test_adapter_training import noisy

class Killed(Quiet):
    def report(self, value, epoch):
        super().report(value, epoch)
        if epoch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
import torch
torch.set_num_threads(1)
train(ready(folder, noisy(train={"epochs": 4})), Killed(), folder, save_every=0)
"""


@pytest.mark.slow
def test_a_killed_trial_resumes_bitwise(tmp_path: Path) -> None:
    wanted = noisy(train={"epochs": 4})
    whole = train(ready(tmp_path, wanted), Quiet())
    folder = tmp_path / "state"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    rest = Quiet()
    assert same(train(ready(folder, wanted), rest, folder), whole)
    assert 1 <= len(rest.values) <= 2
