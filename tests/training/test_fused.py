"""AdamW with halves in one pass, held against torch's own. Without a GPU, where Triton is there,
its kernel is interpreted: `TRITON_INTERPRET=1 pytest tests/training/test_fused.py`."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supermax.training import fused as module
from supermax.training.fused import BLOCK, fused
from supermax.training.halves import Halves

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
    """As halves hold them."""
    torch.manual_seed(step)
    return [
        (10.0**-step * torch.randn(p.shape)).to(p.device, torch.bfloat16) for p in net.parameters()
    ]


@given(st.lists(st.integers(1, 5 * BLOCK), min_size=1, max_size=8))
def test_every_number_is_in_one_piece(sizes: list[int]) -> None:
    seen = [set[int]() for _ in sizes]
    for which, begin in module._pieces(sizes).tolist():
        numbers = set(range(begin, min(begin + BLOCK, sizes[which])))
        assert numbers
        assert not numbers & seen[which]
        seen[which] |= numbers
    assert [len(some) for some in seen] == sizes


@runs
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("in_half", [True, False])
@pytest.mark.parametrize("unreached", [False, True])
def test_it_steps_as_torch_does(clip: float | None, in_half: bool, unreached: bool) -> None:
    theirs, ours = Net(), Net()
    by_torch, by_us = optimizer_of(theirs), optimizer_of(ours)
    ours.load_state_dict(theirs.state_dict())
    halves = Halves(ours, 1)
    halves.refresh()
    made = fused(by_us, halves)
    assert made is not None
    made.get_ready()
    skipped = ours.matrices[1].weight if unreached else None
    for step in range(4):
        found = gradients(theirs, step)
        for one, other, gradient in zip(
            theirs.parameters(), ours.parameters(), found, strict=True
        ):
            if other is skipped:
                continue
            one.grad = gradient.float()
            half = halves.of.get(other)
            if in_half and half is not None:
                half.whole.grad = gradient
            else:
                other.grad = gradient.float()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        by_torch.step()
        made(clip)
        by_us.zero_grad()
        halves.forget()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=2e-6, atol=1e-7)
        for name, value in by_torch.state[one].items():
            near = 2e-6 * float(value.abs().max())
            torch.testing.assert_close(by_us.state[other][name], value, rtol=2e-6, atol=near)
    exactly = 0.0 if DEVICE == "cuda" else 2**-7  # interpreted, digits are cut off
    for weight, half in halves.of.items():
        expected = weight.detach().to(torch.bfloat16)
        torch.testing.assert_close(half.value, expected, rtol=exactly, atol=0.0)


@runs
def test_where_it_cannot_be_had_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_broken", False)

    def fails(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(module.FusedAdamW, "rehearse", fails)
    net = Net()
    for _ in range(2):
        assert fused(optimizer_of(net), Halves(net, 1)) is None
    assert capsys.readouterr().err.count("Failed to find C compiler") == 1


def test_without_a_gpu_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    net = Net()
    assert fused(optimizer_of(net), Halves(net, 1)) is None
