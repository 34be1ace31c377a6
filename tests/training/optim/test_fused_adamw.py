"""Fused AdamW kernel compared with torch's AdamW. Without a GPU, where Triton is installed, the
kernel is interpreted: `TRITON_INTERPRET=1 pytest tests/training/optim/test_fused_adamw.py`."""

from __future__ import annotations

import ctypes
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supermax.training.loop import train
from supermax.training.optim import fused_adamw as module
from supermax.training.optim.bf16_weights import Bf16Copies
from supermax.training.optim.fused_adamw import BLOCK, FusedAdamW, fused
from tests.few import quick_are
from tests.training.corpora import Quiet, config, ready
from tests.training.steps.test_cuda_graphs import SILENT, captured_steps, distance

pytestmark = pytest.mark.usefixtures("same_bf16_everywhere")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
runs = pytest.mark.skipif(
    DEVICE == "cpu" and "TRITON_INTERPRET" not in os.environ, reason="needs a GPU, or Triton"
)


class Net(torch.nn.Module):
    """Sizes that are one number, less than a piece, one to the number, and more by a few."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrices = torch.nn.ModuleList(
            torch.nn.Linear(*sizes) for sizes in ((1, 1), (5, 3), (BLOCK, 1), (BLOCK + 7, 3))
        )
        self.norm = torch.nn.LayerNorm(33)
        self.to(DEVICE)


def optimizer_of(net: Net) -> torch.optim.AdamW:
    rates = [torch.tensor(rate, device=DEVICE) for rate in (1e-2, 3e-3)]
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "lr": rates[0],
         "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.ndim == 1], "lr": rates[1],
         "weight_decay": 0.0},
    ]  # fmt: skip
    made = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6, capturable=DEVICE == "cuda")
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    made.zero_grad()
    for state in made.state.values():
        for value in state.values():
            value.zero_()
    return made


def gradients(net: Net, step: int) -> list[torch.Tensor]:
    """Return bf16 gradients."""
    torch.manual_seed(step)
    return [
        (10.0**-step * torch.randn(p.shape)).to(p.device, torch.bfloat16) for p in net.parameters()
    ]


@given(st.lists(st.integers(1, 5 * BLOCK), min_size=1, max_size=8))
def test_every_number_is_in_one_piece(sizes: list[int]) -> None:
    seen = [set[int]() for _ in sizes]
    for which, begin in module._blocks(sizes).tolist():
        numbers = set(range(begin, min(begin + BLOCK, sizes[which])))
        assert numbers
        assert not numbers & seen[which]
        seen[which] |= numbers
    assert [len(some) for some in seen] == sizes


@runs
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("in_half", [True, False])
@pytest.mark.parametrize("unreached", [False, True])
def test_kernel_steps_as_torch_adamw(clip: float | None, in_half: bool, unreached: bool) -> None:
    theirs, ours = Net(), Net()
    by_torch, by_us = optimizer_of(theirs), optimizer_of(ours)
    ours.load_state_dict(theirs.state_dict())
    copies = Bf16Copies(ours, 1)
    copies.refresh()
    made = fused(by_us, copies)
    assert made is not None
    made.allocate_buffers()
    skipped = ours.matrices[1].weight if unreached else None
    for step in range(4):
        found = gradients(theirs, step)
        for one, other, gradient in zip(
            theirs.parameters(), ours.parameters(), found, strict=True
        ):
            if other is skipped:
                continue
            one.grad = gradient.float()
            half = copies.of.get(other)
            if in_half and half is not None:
                half.whole.grad = gradient
            else:
                other.grad = gradient.float()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        by_torch.step()
        made(clip)
        by_us.zero_grad()
        copies.clear_gradients()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=2e-6, atol=1e-7)
        for name, value in by_torch.state[one].items():
            near = 2e-6 * float(value.abs().max())
            torch.testing.assert_close(by_us.state[other][name], value, rtol=2e-6, atol=near)
    exactly = 0.0 if DEVICE == "cuda" else 2**-7  # interpreted, digits are cut off
    for weight, half in copies.of.items():
        expected = weight.detach().to(torch.bfloat16)
        torch.testing.assert_close(half.value, expected, rtol=exactly, atol=0.0)


class StandIn:
    """Reference of the kernel in NumPy, on the same tables and addresses."""

    def __init__(self) -> None:
        self.launches: list[bool] = []
        """True for bf16 gradients, for each weight that had one."""

    def __getitem__(self, _: Any) -> Any:
        return self

    def __call__(
        self, table: Any, places: Any, decays: Any, pieces: Any, scale: Any, corrections: Any,
        roots: Any, old: float, new: float, old_squares: float, new_squares: float, eps: float,
        *, BF16_GRADIENTS: bool, **_: Any,  # noqa: N803 (Triton's own)
    ) -> None:  # fmt: skip
        self.launches += [BF16_GRADIENTS] if places.any() else []
        for one, ((*where, size), place) in enumerate(
            zip(table.tolist(), places.tolist(), strict=True)
        ):
            weight, mean, square, half, rate = where
            if not place:
                continue
            slope = _at(place, size, half=BF16_GRADIENTS and half) / float(scale)
            weights, means, squares = (_at(where, size) for where in (weight, mean, square))
            lr = float(_at(rate, 1)[0])
            means[:] = old * means + new * slope
            squares[:] = old_squares * squares + new_squares * slope**2
            weights *= 1 - lr * float(decays[one])
            weights -= (
                lr / float(corrections[one]) * means / (np.sqrt(squares) / float(roots[one]) + eps)
            )
            if half:
                kind = torch.from_numpy(weights).to(torch.bfloat16).view(torch.int16)
                _raw(half, size, ctypes.c_int16)[:] = kind.numpy()


def _raw(place: int, size: int, kind: Any) -> Any:
    return np.ctypeslib.as_array((kind * size).from_address(place))


def _at(place: int, size: int, half: Any = False) -> Any:
    if not half:
        return _raw(place, size, ctypes.c_float)
    read = torch.from_numpy(_raw(place, size, ctypes.c_int16).copy())
    return read.view(torch.bfloat16).float().numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "clip", "micro_batch"),
    quick_are(
        [("share", 0.05, 3)],
        product(["share", "joint"], [0.05, None], [None, 3]),
    ),
)
def test_captured_steps_with_the_kernel_train_as_eager_steps(
    tmp_path: Path,
    agent: str,
    micro_batch: int | None,
    clip: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that what is clipped matters, `eps` is large."""
    kernel = StandIn()
    monkeypatch.setattr(
        "supermax.training.steps.capturable_step.fused", lambda *args: FusedAdamW(*args, kernel)
    )
    wanted = config(
        agent, **SILENT, train={"epochs": 2, "clip": clip},
        optim={"eps": 1e-3, "weight_decay": 0.1, "layer_decay": 0.8, "lr": 3e-3},
        loss={"evidence_weight": 0.5 if clip is None else 0.0},
    )  # fmt: skip
    how: dict[str, Any] = {"n": 4, "micro_batch": micro_batch, "precision": "bf16"}
    first = ready(tmp_path, wanted, **how).model.state_dict()
    eager = train(ready(tmp_path, wanted, **how), Quiet())
    assert not kernel.launches
    prepared = captured_steps(ready(tmp_path, wanted, **how))
    captured = train(prepared, Quiet())
    assert prepared.executor.how == "CUDA graphs"
    assert set(kernel.launches) == {micro_batch is None}
    moved = distance(eager.weights, first)
    assert moved > 0
    assert distance(captured.weights, eager.weights) < 0.05 * moved


@runs
def test_where_it_cannot_be_had_it_is_said_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_why", None)

    def fails(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC")

    monkeypatch.setattr(module.FusedAdamW, "warm_up", fails)
    wanted = config(**SILENT)
    prepared = captured_steps(ready(tmp_path, wanted, precision="bf16"))
    train(prepared, Quiet())
    assert prepared.executor.how == (
        "CUDA graphs; no fused AdamW kernel: it takes a C compiler and the headers of Python "
        "(gcc and python3-dev)"
    )
    other = captured_steps(ready(tmp_path, config(**SILENT, optim={"name": "adafactor"})))
    train(other, Quiet())
    assert other.executor.how == "CUDA graphs"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'triton'"), "pip install triton"),
        (PermissionError(13, "Permission denied", "/nowhere"), "TRITON_CACHE_DIR"),
        (subprocess.CalledProcessError(1, ["gcc", "a.c"]), "python3-dev"),
        (RuntimeError("out of registers"), "out of registers"),
    ],
)
def test_the_reason_says_what_to_do(error: Exception, said: str) -> None:
    assert said in module._explain(error)


def test_without_a_gpu_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    net = Net()
    assert fused(optimizer_of(net), Bf16Copies(net, 1)) is None
