"""Learning rates of every update, compared with the schedules of transformers and PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers import optimization as theirs

from supermax.training.config import ScheduleConfig
from supermax.training.optim.schedules import make_schedule, set_learning_rates

BASES = (1e-3, 2e-5)


def optimizer() -> torch.optim.Optimizer:
    """Return an optimizer with two groups, each with its own learning rate."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in BASES]
    return torch.optim.SGD(groups)


def rates_of(sgd: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in sgd.param_groups]


def walked(scheduler: Any, updates: int) -> list[list[float]]:
    """Return the learning rates of a plain loop."""
    rates = []
    for _ in range(updates):
        rates.append(rates_of(scheduler.optimizer))
        scheduler.optimizer.step()
        if len(rates) < updates:  # one more than its updates is more than OneCycleLR allows
            scheduler.step()
    return rates


def ours(config: ScheduleConfig, updates: int) -> list[list[float]]:
    """Return the learning rates of a trial."""
    sgd, factor, rates = optimizer(), make_schedule(config, updates), []
    for update in range(updates):
        set_learning_rates(sgd, BASES, factor(update))
        rates.append(rates_of(sgd))
    return rates


def assert_same(found: list[list[float]], expected: list[list[float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-18)


def of_transformers(config: ScheduleConfig, warmup: int, updates: int) -> Any:
    sgd = optimizer()
    if config.name == "linear":
        return theirs.get_linear_schedule_with_warmup(sgd, warmup, updates)
    if config.name == "cosine":
        return theirs.get_cosine_schedule_with_warmup(sgd, warmup, updates)
    if config.name == "cosine_restarts":
        return theirs.get_cosine_with_hard_restarts_schedule_with_warmup(
            sgd, warmup, updates, num_cycles=config.cycles
        )
    return theirs.get_polynomial_decay_schedule_with_warmup(
        sgd, warmup, updates, lr_end=0.0, power=config.power
    )


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(["linear", "cosine", "cosine_restarts", "polynomial"]),
    warmup=st.floats(0, 0.99),
    updates=st.integers(1, 50),
    cycles=st.integers(1, 4),
    power=st.floats(0.5, 3),
)
@example(name="linear", warmup=0.5, updates=1, cycles=1, power=1.0)
@example(name="linear", warmup=0.5, updates=7, cycles=1, power=1.0)
@example(name="linear", warmup=0.9, updates=2, cycles=1, power=1.0)
def test_as_in_transformers(
    name: str, warmup: float, updates: int, cycles: int, power: float
) -> None:
    """The warm-up is rounded to updates, and at least one update is left after it; the Trainer of
    transformers rounds up."""
    config = ScheduleConfig.model_validate(
        {"name": name, "warmup": warmup, "cycles": cycles, "power": power}
    )
    rising = min(round(warmup * updates), updates - 1)
    assert_same(ours(config, updates), walked(of_transformers(config, rising, updates), updates))


@settings(max_examples=60, deadline=None)
@given(warmup=st.floats(0.01, 0.9), updates=st.integers(3, 60))
@example(warmup=0.1, updates=40)
@example(warmup=0.25, updates=17)
@example(warmup=0.9, updates=30)
def test_one_cycle_as_in_torch(warmup: float, updates: int) -> None:
    """From two warm-up updates on: with fewer, PyTorch has no update before the peak, or divides
    by 0, and a trial still has one."""
    assume(warmup * updates >= 2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer(), max_lr=list(BASES), total_steps=updates, pct_start=warmup
    )
    config = ScheduleConfig(name="one_cycle", warmup=warmup)
    assert_same(ours(config, updates), walked(scheduler, updates))
