"""Optimizers: the one that was asked for, with what was asked for, and exact after a reload.

Their updates are compared with the papers in tests/reference.
"""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from supermax import UserError
from supermax.errors import EnvironmentFault
from supermax.training.config import OptimConfig
from supermax.training.optim.optimizers import (
    check_grad_scale,
    make_optimizer,
    parameter_groups,
    unavailable,
)
from supermax.training.optim.schedules import set_learning_rates
from tests.training.corpora import config, ready

CPU = torch.device("cpu")
MISSING = unavailable("cpu")
NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(name in MISSING, reason=MISSING.get(name, "")))
    for name in ("adamw", "adafactor", "lion", "adamw_8bit")
]


class Model(nn.Module):
    """Two layers over embeddings, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(70, 64)
        self.layer = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embeddings(ids)
        for layer in self.layer:
            hidden = torch.tanh(layer(hidden))
        out: torch.Tensor = self.head(self.norm(hidden))
        return out


ABOVE = {"embeddings.weight": 2, "layer.0.weight": 1, "layer.0.bias": 1}


def made(name: str, model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    config = OptimConfig.model_validate({"name": name, "lr": 1e-3, **more})
    return make_optimizer(parameter_groups(model, config, ABOVE), config, CPU)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: range) -> list[float]:
    losses, base = [], [0.01 for _ in optimizer.param_groups]
    for update in updates:
        set_learning_rates(optimizer, base, 1 / (1 + update))
        generator = torch.Generator().manual_seed(update)
        ids = torch.randint(0, 70, (16,), generator=generator)
        loss = nn.functional.cross_entropy(model(ids), ids % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# Groups.


def test_groups_by_depth_and_decay() -> None:
    model = Model()
    config = OptimConfig(lr=1e-3, weight_decay=0.1, layer_decay=0.5)
    found = parameter_groups(model, config, ABOVE)
    names = {parameter: name for name, parameter in model.named_parameters()}
    got = {names[p]: (g["lr"], g["weight_decay"]) for g in found for p in g["params"]}
    assert got == {
        "embeddings.weight": (0.25e-3, 0.1),
        "layer.0.weight": (0.5e-3, 0.1),
        "layer.0.bias": (0.5e-3, 0.0),
        "layer.1.weight": (1e-3, 0.1),
        "layer.1.bias": (1e-3, 0.0),
        "norm.weight": (1e-3, 0.0),
        "norm.bias": (1e-3, 0.0),
        "head.weight": (1e-3, 0.1),
        "head.bias": (1e-3, 0.0),
    }
    assert sum(len(g["params"]) for g in found) == len(names)  # none twice


def test_frozen_parameters_are_left_out() -> None:
    model = Model()
    model.embeddings.requires_grad_(False)
    model.layer[0].requires_grad_(False)
    found = parameter_groups(model, OptimConfig(), ABOVE)
    kept = {id(p) for g in found for p in g["params"]}
    assert kept == {id(p) for p in model.parameters() if p.requires_grad}
    model.requires_grad_(False)
    with pytest.raises(UserError, match="all of them are frozen"):
        parameter_groups(model, OptimConfig(), ABOVE)


# Each optimizer.


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_has_its_settings_and_learns(name: str) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = made(name, model, weight_decay=0.07, beta1=0.85, beta2=0.97, eps=1e-7)
    for group in optimizer.param_groups:
        assert group["lr"] == 1e-3
        assert {p.ndim > 1 for p in group["params"]} == {group["weight_decay"] == 0.07}
        if name != "adafactor":
            assert tuple(group["betas"]) == (0.85, 0.97)
        if name.startswith("adamw"):
            assert group["eps"] == 1e-7
    losses = train(model, optimizer, range(60))
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.parametrize("name", NAMES)
def test_a_reloaded_optimizer_continues_bitwise_equal(name: str) -> None:
    torch.manual_seed(1)
    model = Model()
    optimizer = made(name, model)
    train(model, optimizer, range(5))
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    other = Model()
    reloaded = made(name, other)
    other.load_state_dict(state["model"])
    reloaded.load_state_dict(state["optimizer"])
    assert train(model, optimizer, range(5, 12)) == train(other, reloaded, range(5, 12))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.skipif("lion" in MISSING, reason=MISSING.get("lion", ""))
def test_lion_does_not_synchronise() -> None:
    """Otherwise it could not be captured. Reading a meta tensor is an error."""
    model = Model().to("meta")
    optimizer = made("lion", model, weight_decay=0.1)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device="meta")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.step()


# Clipping inside the step of fused AdamW.


def test_fused_adamw_divides_gradients_by_grad_scale() -> None:
    check_grad_scale.cache_clear()
    check_grad_scale("cpu")


def test_a_torch_that_ignores_grad_scale_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training would go on without clipping."""

    class Ignores(torch.optim.AdamW):
        grad_scale = property(lambda self: None, lambda self, scale: None)

    monkeypatch.setattr(torch.optim, "AdamW", Ignores)
    check_grad_scale.cache_clear()
    with pytest.raises(EnvironmentFault, match=r"would not be clipped.*pip install"):
        check_grad_scale("cpu")


def test_a_step_that_clips_checks_grad_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr("supermax.training.steps.step.check_grad_scale", checked.append)
    ready(tmp_path, config(optim={"name": "adamw"}, train={"clip": 1.0}))
    assert checked == ["cpu"]
    ready(tmp_path, config(optim={"name": "adamw"}, train={"clip": None}))
    ready(tmp_path, config(optim={"name": "adafactor"}, train={"clip": 1.0}))
    assert checked == ["cpu"]


# Optimizers that cannot run.


def test_a_missing_package_is_said_and_nothing_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert set(unavailable("cuda")) == {"lion", "adamw_8bit"}
    assert "pip install pytorch-optimizer" in unavailable("cpu")["lion"]
    with pytest.raises(UserError, match="needs the package bitsandbytes"):
        made("adamw_8bit", Model())
    assert made("adamw", Model())


def test_a_device_that_an_optimizer_does_not_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert unavailable("cpu") == unavailable("cuda") == {}
    (name, reason), *others = unavailable("mps").items()
    assert (name, others) == ("adamw_8bit", [])
    assert "does not run on mps" in reason
    with pytest.raises(UserError, match="does not run on mps"):
        make_optimizer([], OptimConfig(name="adamw_8bit"), "mps")


def test_a_package_that_does_not_load_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(UserError, match="is installed, but does not load"):
        made("lion", Model())


@pytest.mark.slow
def test_looking_for_packages_loads_none() -> None:
    code = (
        "import sys; from supermax.training.optim.optimizers import unavailable;"
        "unavailable('cpu');"
        "print(sorted({'bitsandbytes', 'pytorch_optimizer', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
