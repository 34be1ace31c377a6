"""Weights in half precision beside those that are trained: they compute what autocast computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from supermax.training import halves as module
from supermax.training.halves import Halves
from supermax.training.loop import train
from supermax.training.optimizers import unavailable
from tests.training.corpora import Quiet, config, ready
from tests.training.test_captured import OPTIMIZERS, SILENT, captured


class Net(nn.Module):
    """One layer twice, one without a bias, one that is not trained, one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm = nn.Embedding(7, 8), nn.LayerNorm(8)
        self.twice, self.plain = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.still, self.unreached = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.norm(self.table(ids))
        states = self.twice(torch.tanh(self.twice(states)))
        states = states + self.still(self.plain(states))
        return self.head(states[:, 0])


IDS = torch.tensor([[1, 2, 3], [4, 5, 6], [0, 1, 4], [2, 2, 3]])


def loss_of(net: Net) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(IDS)
    return nn.functional.cross_entropy(logits.float(), torch.tensor([0, 1, 2, 1]))


def by_autocast(times: int = 1) -> tuple[Net, torch.Tensor]:
    net = Net()
    for _ in range(times):
        loss = loss_of(net)
        loss.backward()
    return net, loss.detach()


@pytest.mark.parametrize("rows", [0, 5, 100])
def test_losses_and_gradients_are_those_of_autocast(rows: int) -> None:
    """To the bit, but for the sums of biases, which come in another order."""
    theirs, expected = by_autocast()
    net = Net()
    halves = Halves(net, rows)
    with halves.in_use():
        loss = loss_of(net)
        loss.backward()
    halves.give()
    assert torch.equal(loss, expected)
    for (name, one), (_, other) in zip(
        net.named_parameters(), theirs.named_parameters(), strict=True
    ):
        if other.grad is None:
            assert one.grad is None, name
            continue
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        torch.testing.assert_close(one.grad, other.grad, rtol=0.01 if one.ndim == 1 else 0, atol=0)


def test_gradients_of_micro_batches_add_up_in_full_precision() -> None:
    theirs, _ = by_autocast(3)
    net = Net()
    halves = Halves(net, 100)
    for _ in range(3):
        with halves.in_use():
            loss_of(net).backward()
        halves.give()
    gradient, expected = net.head.weight.grad, theirs.head.weight.grad
    assert torch.equal(gradient, expected)
    assert not torch.equal(gradient, gradient.to(torch.bfloat16).float())


def test_outside_of_their_use_nothing_is_changed() -> None:
    net = Net()
    before = dict(net.named_parameters())
    halves = Halves(net, 100)

    def fails() -> None:
        with halves.in_use():
            assert net.head.weight.dtype == torch.bfloat16
            assert net.still.weight.dtype == torch.float32  # not trained: left to autocast
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert {name: id(p) for name, p in net.named_parameters()} == {
        name: id(p) for name, p in before.items()
    }
    assert type(net.head) is nn.Linear
    assert "ones" not in vars(net.head)


def test_new_weights_are_known_when_asked_for() -> None:
    net = Net()
    halves = Halves(net, 100)
    with torch.no_grad():
        net.head.weight += 1
    halves.refresh()
    expected = net.head.weight.to(torch.bfloat16)
    with halves.in_use():
        assert torch.equal(net.head.weight, expected)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "adamw_8bit"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_recorded_steps_in_half_precision_train_as_those_one_by_one(
    tmp_path: Path, optimizer: str, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the update itself cannot be recorded."""
    if optimizer in unavailable("cpu"):
        pytest.skip(unavailable("cpu")[optimizer])
    monkeypatch.setattr("supermax.training.fused._broken", True)
    used = []
    give = module.Halves.give
    monkeypatch.setattr(module.Halves, "give", lambda halves: (used.append(1), give(halves)))
    wanted = config(**SILENT, optim={"name": optimizer}, train={"epochs": 3})
    how = {"micro_batch": micro_batch, "precision": "bf16"}
    one_by_one = train(ready(tmp_path, wanted, **how), Quiet())
    assert not used
    prepared = captured(ready(tmp_path, wanted, **how))
    recorded = train(prepared, Quiet())
    assert prepared.way.why_eager is None
    assert used
    losses = [[row["train_loss"] for row in result.curve] for result in (one_by_one, recorded)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1][-1] != losses[1][0]
