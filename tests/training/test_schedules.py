"""Schedules, against those of transformers and of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import optimization as theirs

from supermax.training.config import ScheduleConfig
from supermax.training.schedules import apply, make_schedule

NAMES = ("linear", "cosine", "cosine_restarts", "polynomial", "one_cycle")


def config(name: str, **more: Any) -> ScheduleConfig:
    return ScheduleConfig.model_validate({"name": name, **more})


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def walked(scheduler: Any, updates: int) -> list[float]:
    rates = []
    for _ in range(updates):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        if len(rates) < updates:  # one more than its updates is more than OneCycleLR allows
            scheduler.step()
    return rates


def of_transformers(one: ScheduleConfig, warmup: int, updates: int) -> Any:
    sgd = optimizer()
    if one.name == "linear":
        return theirs.get_linear_schedule_with_warmup(sgd, warmup, updates)
    if one.name == "cosine":
        return theirs.get_cosine_schedule_with_warmup(sgd, warmup, updates)
    if one.name == "cosine_restarts":
        return theirs.get_cosine_with_hard_restarts_schedule_with_warmup(
            sgd, warmup, updates, num_cycles=one.cycles
        )
    return theirs.get_polynomial_decay_schedule_with_warmup(
        sgd, warmup, updates, lr_end=0.0, power=one.power
    )


@pytest.mark.parametrize("updates", [1, 7, 40])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(
    "one",
    [
        config("linear"),
        config("cosine"),
        config("cosine_restarts", cycles=1),
        config("cosine_restarts", cycles=3),
        config("polynomial", power=0.5),
        config("polynomial", power=2.5),
    ],
    ids=str,
)
def test_as_in_transformers(one: ScheduleConfig, warmup: float, updates: int) -> None:
    factor = make_schedule(one.model_copy(update={"warmup": warmup}), updates)
    expected = walked(of_transformers(one, round(warmup * updates), updates), updates)
    assert [factor(k) for k in range(updates)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("warmup", "updates"), [(0.1, 40), (0.3, 50), (0.25, 17), (0.9, 30)])
def test_one_cycle_as_in_torch(warmup: float, updates: int) -> None:
    factor = make_schedule(config("one_cycle", warmup=warmup), updates)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer(), max_lr=1.0, total_steps=updates, pct_start=warmup
    )
    expected = walked(scheduler, updates)
    assert [factor(k) for k in range(updates)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("warmup", [0.0, 0.01])
def test_one_cycle_rises_even_without_warmup(warmup: float) -> None:
    factor = make_schedule(config("one_cycle", warmup=warmup), 20)
    rates = [factor(k) for k in range(20)]
    assert rates[:2] == pytest.approx([1 / 25, 1.0])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] < 1e-5


@given(
    name=st.sampled_from(NAMES),
    warmup=st.floats(0, 0.99),
    updates=st.integers(1, 60),
    cycles=st.integers(1, 4),
    power=st.floats(0.5, 3),
)
def test_factors_stay_between_0_and_1_and_something_is_learnt(
    name: str, warmup: float, updates: int, cycles: int, power: float
) -> None:
    one = config(name, warmup=warmup, cycles=cycles, power=power)
    factor = make_schedule(one, updates)
    rates = [factor(k) for k in range(updates)]
    assert all(0 <= rate <= 1 for rate in rates)
    assert max(rates) > 0
    assert rates == [make_schedule(one, updates)(k) for k in range(updates)]
    assert updates < 2 or factor(updates) < 1e-5


def test_apply_sets_every_group() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)]
    sgd = torch.optim.SGD(groups)
    apply(sgd, [1.0, 0.1], 0.5)
    apply(sgd, [1.0, 0.1], 0.25)  # of the base, not of the last one
    assert [group["lr"] for group in sgd.param_groups] == [0.25, 0.025]
    with pytest.raises(ValueError):
        apply(sgd, [1.0], 0.5)
