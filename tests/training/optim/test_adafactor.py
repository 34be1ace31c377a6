"""Adafactor without a word from the device, held against torch's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from supermax.training.config import OptimConfig
from supermax.training.optim.adafactor import DeviceAdafactor
from supermax.training.optim.optimizers import make_optimizer

SHAPES = [(), (1,), (7,), (64,), (5, 3), (48, 80), (1, 6), (2, 4, 9)]
THEIRS, OURS = torch.optim.Adafactor, DeviceAdafactor
KINDS: list[type[torch.optim.Adafactor]] = [THEIRS, OURS]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    sizes = (0.04, 3.0)  # of which one is below and one above what a rate is scaled by
    return [
        nn.Parameter(size * torch.randn(shape, generator=generator))
        for shape, size in product(SHAPES, sizes)
    ]


def made(kind: type[torch.optim.Adafactor], some: list[nn.Parameter], **more: Any) -> Any:
    groups = [
        {"params": [p for p in some if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in some if p.ndim < 2], "weight_decay": 0.0},
    ]
    return kind(groups, lr=1e-3, **{"eps": (None, 1.0), **more})


def rate(step: int) -> float:
    """Changing, once beyond what the step's number allows, and once nothing."""
    return {4: 2.0, 6: 0.0}.get(step, 1e-2 / (1 + step))


def run(
    optimizer: Any,
    some: list[nn.Parameter],
    steps: range,
    as_rate: Callable[[float], Any] = float,
) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = as_rate(rate(step))
        for i, parameter in enumerate(some):
            size = 10.0 ** (i % 5 - 3) * (step != 2)  # none at all in one step
            parameter.grad = size * torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def assert_same(some: list[nn.Parameter], others: list[nn.Parameter]) -> None:
    """To what rounding leaves of moves of about 1."""
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("as_rate", [float, torch.tensor], ids=["number", "tensor"])
@pytest.mark.parametrize(
    "more",
    [{}, {"eps": (None, 1e-3)}, {"eps": (1e-4, 0.5), "d": 1.5, "beta2_decay": -0.5},
     {"maximize": True}],
    ids=str,
)  # fmt: skip
def test_updates_equal_those_of_torch(
    more: dict[str, Any], as_rate: Callable[[float], Any]
) -> None:
    theirs, ours = parameters(), parameters()
    first, second = made(THEIRS, theirs, **more), made(OURS, ours, **more)
    for step in range(20):
        run(first, theirs, range(step, step + 1))
        run(second, ours, range(step, step + 1), as_rate)
        assert_same(ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        mine, its = second.state[one], first.state[other]
        assert {key: value.shape for key, value in mine.items()} == {
            key: value.shape for key, value in its.items()
        }
        for key, value in mine.items():
            torch.testing.assert_close(value, its[key], rtol=1e-5, atol=0.0)


def nowhere(number: float) -> torch.Tensor:
    return torch.full((), number, device="meta")


@pytest.mark.parametrize("as_rate", [float, nowhere])
def test_no_synchronisation(as_rate: Callable[[float], Any]) -> None:
    """Reading a meta tensor on the CPU would be an error."""
    some = [nn.Parameter(torch.zeros(shape, device="meta")) for shape in SHAPES]
    for kind in KINDS:
        optimizer = made(kind, some)
        for group in optimizer.param_groups:
            group["lr"] = as_rate(1e-3)
        for parameter in some:
            parameter.grad = torch.zeros_like(parameter)
        with pytest.raises(RuntimeError, match="item") if kind is THEIRS else nullcontext():
            for _ in range(3):
                optimizer.step()


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("then", KINDS)
def test_state_moves_between_implementations(
    first: type[torch.optim.Adafactor], then: type[torch.optim.Adafactor]
) -> None:
    whole, some = parameters(), parameters()
    run(made(THEIRS, whole), whole, range(12))
    before = made(first, some)
    run(before, some, range(5))
    saved = before.state_dict()
    after = made(then, some)
    after.load_state_dict(saved)
    run(after, some, range(5, 12))
    assert_same(some, whole)
    assert saved["param_groups"][0].keys() == after.state_dict()["param_groups"][0].keys()


def test_steps_are_where_the_parameter_is() -> None:
    """A saved state has them on the host, and torch would leave them there."""
    here = nn.Parameter(torch.zeros(3))
    here.grad = torch.ones(3)
    before = THEIRS([here])
    before.step()
    there = nn.Parameter(torch.zeros(3, device="meta"))
    after = OURS([there])
    after.load_state_dict(before.state_dict())
    assert {value.device.type for value in after.state[there].values()} == {"meta"}
    after.load_state_dict(OURS([there]).state_dict())  # before the first step there is none
    assert not after.state


def test_parameters_without_gradient_stay_unchanged() -> None:
    some = parameters()
    before = [one.detach().clone() for one in some]
    optimizer = made(OURS, some)
    optimizer.step()
    assert not optimizer.state
    some[0].grad = torch.ones_like(some[0])
    assert optimizer.step(lambda: 3.0) == 3.0
    assert list(optimizer.state) == [some[0]]
    assert [torch.equal(one, two) for one, two in zip(some, before, strict=True)].count(False) == 1


@pytest.mark.parametrize("as_rate", [float, torch.tensor], ids=["number", "tensor"])
def test_absolute_steps_do_not_depend_on_the_size_of_the_weights(
    as_rate: Callable[[float], Any],
) -> None:
    some, large = parameters(), parameters()
    for parameter in large:
        parameter.data.mul_(8)
    before = [[one.detach().clone() for one in each] for each in (some, large)]
    for each in (some, large):
        groups = [{"params": each, "weight_decay": 0.0}]
        run(OURS(groups, lr=1e-3, eps=(1e-15, 1e-3), absolute=True), each, range(3), as_rate)
    moves = [
        [a - b for a, b in zip(*pair, strict=True)]
        for pair in zip((some, large), before, strict=True)
    ]
    for one, other in zip(*moves, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        assert one.abs().max() > 1e-3


def test_make_optimizer_returns_it() -> None:
    config = OptimConfig(name="adafactor")
    for device in ("cpu", "cuda", "cuda:1", "mps"):
        assert type(make_optimizer([{"params": parameters()}], config, device)) is OURS
