"""Schedules: bounds, short runs and groups; tests/reference compares their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supermax.training.config import ScheduleConfig
from supermax.training.optim.schedules import make_schedule, set_learning_rates

NAMES = ("linear", "cosine", "cosine_restarts", "polynomial", "one_cycle")


def config(name: str, **more: Any) -> ScheduleConfig:
    return ScheduleConfig.model_validate({"name": name, **more})


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
    set_learning_rates(sgd, [1.0, 0.1], 0.5)
    set_learning_rates(sgd, [1.0, 0.1], 0.25)  # of the base, not of the last one
    assert [group["lr"] for group in sgd.param_groups] == [0.25, 0.025]
    with pytest.raises(ValueError):
        set_learning_rates(sgd, [1.0], 0.5)
