"""Weights in half precision beside those that are trained: they compute what autocast computes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from supermax.training.loop import train
from supermax.training.models.architectures import TINY
from supermax.training.optim import bf16_weights as module
from supermax.training.optim.bf16_weights import Bf16Copies, Bf16Linear
from supermax.training.optim.optimizers import unavailable
from tests.few import a_few, quick_are
from tests.training.corpora import Quiet, config, ready
from tests.training.steps.test_cuda_graphs import OPTIMIZERS, SILENT, captured_steps

pytestmark = pytest.mark.usefixtures("same_bf16_everywhere")
FAMILIES = sorted(set(TINY) - {"tiny"})


class Attention(nn.Module):
    """Three projections with the same input or, if `crosswise`, different inputs."""

    def __init__(self, crosswise: bool = False) -> None:
        super().__init__()
        self.crosswise = crosswise
        self.query, self.key, self.value = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        others = torch.tanh(states) if self.crosswise else states
        scores = self.query(states) @ self.key(others).mT
        return torch.softmax(scores, -1).to(torch.bfloat16) @ self.value(states)


class Net(nn.Module):
    """One layer twice, one without a bias, one that is not trained, one that nothing reaches, two
    that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm = nn.Embedding(7, 8), nn.LayerNorm(8)
        self.twice, self.plain = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.still, self.unreached = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
        self.attention = nn.Sequential(Attention(), Attention(crosswise=True))
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.one.weight
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.norm(self.table(ids))
        states = self.twice(torch.tanh(self.twice(states)))
        states = self.attention(states + self.still(self.plain(states)))
        states = self.other(self.one(states))
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
    """Up to the order of summation."""
    theirs, expected = by_autocast()
    net = Net()
    copies = Bf16Copies(net, rows)
    with copies.in_use():
        loss = loss_of(net)
        loss.backward()
    copies.add_gradients()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    for (name, one), (_, other) in zip(
        net.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            assert one.grad.dtype == torch.float32
            size = float(other.grad.abs().max())
            torch.testing.assert_close(one.grad, other.grad, rtol=0.02, atol=0.02 * size, msg=name)


def test_which_layers_have_bf16_copies() -> None:
    net = Net()
    copies = Bf16Copies(net, 100)
    with copies.in_use():
        found = {name for name, one in net.named_modules() if type(one) is Bf16Linear}
    three = {f"attention.{i}.{name}" for i in (0, 1) for name in ("query", "key", "value")}
    assert found == {"twice", "plain", "unreached", "head"} | three
    assert len({half.whole for half in copies.of.values()}) == 7 + 4  # three are one


def test_gradients_of_micro_batches_add_up_in_full_precision() -> None:
    theirs, _ = by_autocast(3)
    net = Net()
    copies = Bf16Copies(net, 100)
    for _ in range(3):
        with copies.in_use():
            loss_of(net).backward()
        copies.add_gradients()
    gradient, expected = net.head.weight.grad, theirs.head.weight.grad
    torch.testing.assert_close(gradient, expected, rtol=0.02, atol=1e-3)
    assert not torch.equal(gradient, gradient.to(torch.bfloat16).float())


def test_outside_of_their_use_nothing_is_changed() -> None:
    net = Net()
    before = dict(net.named_parameters())
    copies = Bf16Copies(net, 100)

    def fails() -> None:
        with copies.in_use():
            assert type(net.head) is Bf16Linear
            assert type(net.still) is nn.Linear  # not trained: left to autocast
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert {name: id(p) for name, p in net.named_parameters()} == {
        name: id(p) for name, p in before.items()
    }
    assert type(net.head) is nn.Linear
    assert "together" not in vars(net.head)


def test_a_model_without_such_layers_has_none() -> None:
    net = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.LayerNorm(4))
    copies = Bf16Copies(net, 100)
    copies.refresh()
    with copies.in_use():
        net(torch.ones(2, 4)).sum().backward()
    copies.add_gradients()
    assert not copies.of
    assert net[1].weight.grad is not None


def test_new_weights_are_known_when_asked_for() -> None:
    net = Net()
    copies = Bf16Copies(net, 100)
    with torch.no_grad():
        net.head.weight *= 3
    copies.refresh()
    with copies.in_use():
        found = loss_of(net)
    assert found.item() == pytest.approx(loss_of(net).item(), rel=1e-3)
    assert found.item() != pytest.approx(loss_of(Net()).item(), rel=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "micro_batch"),
    quick_are(
        [],
        product([*OPTIMIZERS, "adamw_8bit"], [None, 3]),
    ),
)
def test_captured_bf16_steps_train_as_eager_steps(
    tmp_path: Path, optimizer: str, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the update itself cannot be captured."""
    if optimizer in unavailable("cpu"):
        pytest.skip(unavailable("cpu")[optimizer])
    monkeypatch.setattr("supermax.training.steps.capturable_step.fused", lambda *_: None)
    used = []
    add_gradients = module.Bf16Copies.add_gradients
    monkeypatch.setattr(
        module.Bf16Copies, "add_gradients", lambda copies: (used.append(1), add_gradients(copies))
    )
    wanted = config(**SILENT, optim={"name": optimizer}, train={"epochs": 2})
    how = {"n": 14, "micro_batch": micro_batch, "precision": "bf16"}
    eager = train(ready(tmp_path, wanted, **how), Quiet())
    assert not used
    prepared = captured_steps(ready(tmp_path, wanted, **how))
    captured = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    assert used
    losses = [[row["train_loss"] for row in result.curve] for result in (eager, captured)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1][-1] != losses[1][0]


@pytest.mark.parametrize("family", a_few(FAMILIES, 4))
@pytest.mark.parametrize("agent", quick_are(["criteria"], ["criteria", "share", "joint"]))
def test_every_model_type_trains_the_same_with_bf16_copies(
    tmp_path: Path, family: str, agent: str
) -> None:
    wanted = config(
        agent, encoder={"name": family, "dropout": 0.0, "attention_dropout": 0.0},
        head={"dropout": 0.0}, train={"epochs": 2, "clip": 1.0},
    )  # fmt: skip
    eager = train(ready(tmp_path, wanted, n=10, precision="bf16"), Quiet())
    prepared = captured_steps(ready(tmp_path, wanted, n=10, precision="bf16"))
    captured = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (eager, captured)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
