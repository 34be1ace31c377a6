"""Optimizers, as a trial has them, beside update rules written anew in float64.

AdamW: Loshchilov and Hutter (2019), algorithm 2, with weight decay times the learning rate.
Lion: Chen et al. (2023), algorithm 2.
Adafactor: Shazeer and Stern (2018), algorithms 4 and 5, with the learning rate as the step size,
eps1 = 1e-30, d = 1, beta2 = 1 - t^-0.8, and decoupled weight decay.
8-bit AdamW: Dettmers et al. (2022): AdamW whose moments are rounded after every step, in blocks,
to the nearest of 256 multiples of the block's largest value.

Weights are float32 and move by 20 updates of very different sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supermax.training.config import OptimConfig, read_config
from supermax.training.optim.optimizers import make_optimizer, unavailable
from supermax.training.optim.schedules import set_learning_rates
from supermax.training.steps.execution import Execution
from supermax.training.steps.step import TrainingStep

MISSING = unavailable("cpu")
BETAS, EPS, RATE, DECAY = (0.85, 0.97), 1e-8, 1e-3, 0.1
SHAPES = {"large": (80, 64), "small": (40, 30), "gains": (64,), "bias": (5,)}
"""The first is large enough for 8-bit states. Matrices are decayed, vectors are not."""
SIZES = {"large": 0.04, "small": 0.04, "gains": 3.0, "bias": 0.0}
UPDATES, SPIKE = 20, 11


def named(*names: str) -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.skipif(name in MISSING, reason=MISSING.get(name, "")))
        for name in names
    ]


# Update rules: (weight, gradient, rate, decay) to the next weight, with a state of their own.

Rule = Callable[[Tensor, Tensor, float, float], Tensor]


def adamw() -> Rule:
    first = second = torch.zeros(())
    steps = itertools.count(1)

    def rule(weight: Tensor, gradient: Tensor, rate: float, decay: float) -> Tensor:
        nonlocal first, second
        t = next(steps)
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
        mean, square = first / (1 - BETAS[0] ** t), second / (1 - BETAS[1] ** t)
        return weight - rate * (mean / (square.sqrt() + EPS) + decay * weight)

    return rule


def lion() -> Rule:
    momentum = torch.zeros(())

    def rule(weight: Tensor, gradient: Tensor, rate: float, decay: float) -> Tensor:
        nonlocal momentum
        update = torch.sign(BETAS[0] * momentum + (1 - BETAS[0]) * gradient)
        momentum = BETAS[1] * momentum + (1 - BETAS[1]) * gradient
        return weight - rate * (update + decay * weight)

    return rule


def adafactor() -> Rule:
    rows = columns = squares = torch.zeros(())
    steps = itertools.count(1)

    def rule(weight: Tensor, gradient: Tensor, rate: float, decay: float) -> Tensor:
        nonlocal rows, columns, squares
        beta2 = 1 - next(steps) ** -0.8
        new = gradient**2 + 1e-30
        if weight.ndim == 2:
            rows = beta2 * rows + (1 - beta2) * new.sum(1)
            columns = beta2 * columns + (1 - beta2) * new.sum(0)
            squares = torch.outer(rows, columns) / rows.sum()
        else:
            squares = beta2 * squares + (1 - beta2) * new
        update = gradient / squares.sqrt()
        update = update / max(1.0, update.square().mean().sqrt().item())
        return weight - rate * (update + decay * weight)

    return rule


RULES: dict[str, Callable[[], Rule]] = {
    "adamw": adamw,
    "adamw_8bit": adamw,
    "lion": lion,
    "adafactor": adafactor,
}


# What is updated, and by what.


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in SHAPES.items():
            values = SIZES[name] * torch.randn(shape, generator=generator)
            self.register_parameter(name, nn.Parameter(values))


def gradients(updates: int, size: float) -> Iterator[dict[str, Tensor]]:
    """Yield gradients that shrink, with a spike, and with rows that have none at first."""
    generator = torch.Generator().manual_seed(1)
    for update in range(updates):
        found = {}
        for i, (name, shape) in enumerate(SHAPES.items()):
            scale = size * 10.0**-i / (1 + update) * (100 if update % SPIKE == SPIKE - 1 else 1)
            found[name] = scale * torch.randn(shape, generator=generator)
        if update < 5:
            found["large"][:20] = 0
        yield found


def factor(update: int) -> float:
    """Return the learning rate factor: up from 0, down again, and restarted after 60 updates."""
    return min(update % 60 / 4, 1.5 - update % 60 / 40)


@dataclass
class Made:
    weights: Weights
    optimizer: torch.optim.Optimizer
    rates: list[float]

    def of(self, name: str) -> Tensor:
        found: Tensor = getattr(self.weights, name)
        return found


def groups_of(weights: Weights) -> list[dict[str, Any]]:
    """Return a group for the matrices, and one for the vectors, at half of their rate."""
    groups: list[dict[str, Any]] = []
    for some in (("large", "small"), ("gains", "bias")):
        rate, decay = rate_and_decay(some[0])
        params = [getattr(weights, name) for name in some]
        groups.append({"params": params, "lr": rate, "weight_decay": decay})
    return groups


def made(name: str) -> Made:
    weights = Weights()
    config = OptimConfig.model_validate(
        {"name": name, "lr": RATE, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS}
    )
    groups = groups_of(weights)
    rates = [group["lr"] for group in groups]
    return Made(weights, make_optimizer(groups, config, "cpu"), rates)


def rate_and_decay(name: str) -> tuple[float, float]:
    """Return learning rate and weight decay of a parameter."""
    return (RATE, DECAY) if SHAPES[name][1:] else (RATE / 2, 0.0)


def run(one: Made, updates: int, size: float) -> None:
    for update, found in enumerate(gradients(updates, size)):
        set_learning_rates(one.optimizer, one.rates, factor(update))
        for name, gradient in found.items():
            one.of(name).grad = gradient.clone()
        one.optimizer.step()


def expected(rule: str, updates: int, size: float, clip: float | None = None) -> dict[str, Tensor]:
    """Return the weights after these updates, in float64."""
    weights = {name: p.detach().double() for name, p in Weights().named_parameters()}
    rules = {name: RULES[rule]() for name in weights}
    for update, found in enumerate(gradients(updates, size)):
        norm = sum(g.double().square().sum().item() for g in found.values()) ** 0.5
        scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        for name, gradient in found.items():
            rate, decay = rate_and_decay(name)
            rate = rate * factor(update)
            weights[name] = rules[name](weights[name], scale * gradient.double(), rate, decay)
    return weights


def assert_close(one: Made, wanted: dict[str, Tensor], updates: int) -> None:
    """Check equality up to rounding: of the updates, and of the weights after every update, which
    adds up like a random walk."""
    for name, first in Weights().named_parameters():
        moved = (wanted[name] - first).abs().max().item()
        bound = 2e-5 * moved + 4 * updates**0.5 * 2**-24 * first.abs().max().item()
        off = (one.of(name).double() - wanted[name]).abs().max().item()
        assert off <= bound < 0.01 * moved, name


# Updates.


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5])
@pytest.mark.parametrize("name", named("adamw", "lion", "adafactor"))
def test_updates_as_in_the_paper(name: str, size: float) -> None:
    """The scale of the gradients varies; those of fine-tuning are about 1e-4."""
    one = made(name)
    run(one, UPDATES, size)
    assert_close(one, expected(name, UPDATES, size), UPDATES)


@pytest.mark.parametrize("name", named("adafactor"))
def test_adafactor_is_that_of_transformers(name: str) -> None:
    """A second reference, with absolute steps, that shares no formula with the first."""
    from transformers.optimization import Adafactor

    one, other = made(name), Weights()
    theirs = Adafactor(groups_of(other), scale_parameter=False, relative_step=False)
    rates = [group["lr"] for group in theirs.param_groups]
    for update, found in enumerate(gradients(UPDATES, 1e-4)):
        set_learning_rates(theirs, rates, factor(update))
        for n, gradient in found.items():
            getattr(other, n).grad = gradient.clone()
        theirs.step()
    run(one, UPDATES, 1e-4)
    assert_close(one, {n: p.detach().double() for n, p in other.named_parameters()}, UPDATES)


# 8-bit states.


def moments(one: Made) -> tuple[list[Tensor], list[Tensor]]:
    """Return the large parameter's moments as they are stored, [blocks, 256], and all values that
    each could have been rounded to, [blocks, 256 codes]."""
    state = one.optimizer.state[one.of("large")]
    stored, grids = [], []
    for number in (1, 2):
        codes, scales = state[f"qmap{number}"].double(), state[f"absmax{number}"].double()
        grid = codes * scales[:, None]
        indices = state[f"state{number}"].long().view(len(scales), -1)
        stored.append(grid.gather(1, indices))
        grids.append(grid)
    return stored, grids


@pytest.mark.slow
@pytest.mark.parametrize("name", named("adamw_8bit"))
def test_8_bit_adamw_is_adamw_for_small_parameters(name: str) -> None:
    one, wanted = made(name), expected("adamw", UPDATES, 1e-2)
    run(one, UPDATES, 1e-2)
    state = one.optimizer.state
    assert state[one.of("large")]["state1"].dtype == torch.uint8
    for small in ("small", "gains", "bias"):
        assert state[one.of(small)]["state1"].dtype == torch.float32
    one.weights.large.data = wanted["large"].float()  # see below
    assert_close(one, wanted, UPDATES)


@pytest.mark.slow
@pytest.mark.parametrize("name", named("adamw_8bit"))
def test_8_bit_adamw_is_adamw_with_rounded_moments(name: str) -> None:
    """Each step is AdamW's to float32, from the moments as they are stored; and what is stored is
    the nearest of the 256 values, almost: ties are decided in float32."""
    one = made(name)
    large = one.of("large")
    stored = [torch.zeros(20, 256, dtype=torch.float64) for _ in range(2)]
    for update, found in enumerate(gradients(UPDATES, 1e-2)):
        set_learning_rates(one.optimizer, one.rates, factor(update))
        before, rate = large.detach().double(), RATE * factor(update)
        for n, gradient in found.items():
            one.of(n).grad = gradient.clone()
        one.optimizer.step()

        gradient = found["large"].double().view(20, 256)
        first = BETAS[0] * stored[0] + (1 - BETAS[0]) * gradient
        second = BETAS[1] * stored[1] + (1 - BETAS[1]) * gradient**2
        mean = first / (1 - BETAS[0] ** (update + 1))
        square = second / (1 - BETAS[1] ** (update + 1))
        move = (mean / (square.sqrt() + EPS)).view_as(before)
        wanted = before - rate * (move + DECAY * before)
        assert (large.detach().double() - wanted).abs().max() < 1e-7

        stored, grids = moments(one)
        for kept, exact, grid in zip(stored, (first, second), grids, strict=True):
            largest = exact.abs().amax(1, keepdim=True)
            nearest = (exact[:, :, None] - grid[:, None]).abs().amin(-1)
            assert ((kept - exact).abs() <= nearest + 1e-4 * largest).all()
            assert ((kept - exact).abs() <= 0.01 * largest).all()


# Clipping.


@pytest.mark.parametrize("name", named("adamw", "lion", "adafactor"))
def test_clipping_as_in_torch(name: str) -> None:
    """Fused AdamW divides gradients in its own step; the others are given clipped ones."""
    one, updates, clip = made(name), 100, 0.05
    config = read_config(
        {"encoder": {"name": "tiny"}, "optim": {"name": name}, "train": {"clip": clip}}
    )
    step = TrainingStep(one.weights, one.optimizer, config, None, Execution())  # type: ignore[arg-type]
    norms = []
    for update, found in enumerate(gradients(updates, 1e-3)):
        set_learning_rates(one.optimizer, step.base_rates, factor(update))
        for n, gradient in found.items():
            one.of(n).grad = gradient.clone()
        norms.append(nn.utils.get_total_norm([g.double() for g in found.values()]).item())
        step.update()
        assert all(parameter.grad is None for parameter in one.weights.parameters())
    clipped = sum(norm > clip for norm in norms)
    assert 5 < clipped < 95
    assert_close(one, expected(name, updates, 1e-3, clip), updates)


def test_clipping_beside_clip_grad_norm_to_the_last_digits() -> None:
    """PyTorch's unfused AdamW after clip_grad_norm_ agrees to the last digits of float32."""
    one, other, clip = made("adamw"), Weights(), 0.05
    config = read_config({"encoder": {"name": "tiny"}, "train": {"clip": clip}})
    step = TrainingStep(one.weights, one.optimizer, config, None, Execution())  # type: ignore[arg-type]
    assert one.optimizer.defaults["fused"]
    theirs = torch.optim.AdamW(groups_of(other), betas=BETAS, eps=EPS, fused=False, foreach=False)
    for found in gradients(100, 1e-3):
        for n, gradient in found.items():
            one.of(n).grad = gradient.clone()
            getattr(other, n).grad = gradient.clone()
        step.update()
        nn.utils.clip_grad_norm_(other.parameters(), clip)
        theirs.step()
    for n, p in other.named_parameters():
        torch.testing.assert_close(one.of(n), p, rtol=1e-6, atol=1e-6, msg=n)
