"""LoRA as a searched option: branches of other parameters, and learning rates."""

from __future__ import annotations

import numpy as np
import pytest

from supermax.space import Space, load, narrowed, shipped, with_lora
from supermax.space.adapters import FULL_ONLY, may_adapt
from supermax.space.feasible import draw_from_prior

LORA_ONLY = ("adapter.rank", "adapter.ratio", "adapter.dropout", "adapter.target_modules")


@pytest.mark.parametrize("name", shipped())
def test_no_space_of_the_package_has_an_adapter(name: str) -> None:
    space = load(name)
    assert not [n for n in space.parameters if n.startswith("adapter.")]
    assert not may_adapt(space)
    assert may_adapt(with_lora(space))


@pytest.mark.parametrize("name", shipped())
def test_every_space_of_the_package_can_have_one(name: str) -> None:
    full = load(name)
    space = with_lora(full)
    assert space.mistakes(space.defaults() or {}) == []
    rng = np.random.RandomState(0)
    seen = set()
    for _ in range(12):
        values = draw_from_prior(space, rng)
        lora = values["adapter.name"] == "lora"
        seen.add(lora)
        assert all((key in values) == lora for key in LORA_ONLY)
        assert all((key in values) != lora for key in FULL_ONLY)
        if not lora:
            own = {n: v for n, v in values.items() if n != "adapter.name"}
            missing = [m for m in full.mistakes(own) if not m.startswith("breaks")]
            assert missing == []
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("name", "optimizer", "low", "high", "default"),
    [
        ("standard/criteria", "adamw", 1e-4, 2e-3, 5e-4),
        ("criteria", "adamw", 5e-5, 3e-3, 2e-4),
        ("criteria", "lion", 1e-5, 5e-4, 5e-5),
    ],
)
def test_learning_rates_are_ten_times_those_of_the_space(
    name: str, optimizer: str, low: float, high: float, default: float
) -> None:
    space = with_lora(load(name))
    values = {"adapter.name": "lora", "optim.name": optimizer}
    at = space.active("optim.lr", values)
    assert at is not None
    branch = space.parameters["optim.lr"].branches[at]
    assert branch.data() == {
        **branch.data(), "type": "float", "low": low, "high": high, "log": True, "default": default
    }  # fmt: skip
    full = load(name)
    without = {**values, "adapter.name": "none"}
    before, now = (
        each.parameters["optim.lr"].branches[each.active("optim.lr", without) or 0].data()
        for each in (full, space)
    )
    assert {**now, "when": None} == {**before, "when": None}


def test_choices_of_learning_rates_are_scaled_too() -> None:
    rates = {"choices": [3e-5, 1e-4], "default": 3e-5, "was": "lr"}
    space = with_lora(Space(name="own", parameters={"optim.lr": rates}))
    full, lora = space.parameters["optim.lr"].branches
    assert (full.choices, lora.choices) == ((3e-5, 1e-4), (3e-4, 1e-3))  # type: ignore[union-attr]
    assert lora.default == 3e-4
    assert space.parameters["optim.lr"].was == ("lr",)


def test_an_own_adapter_is_left_as_it_is() -> None:
    own = Space(name="own", parameters={"adapter.name": {"choices": ["lora"]}})
    assert with_lora(own) is own


def test_rates_can_be_narrowed_with_the_adapter() -> None:
    space = with_lora(load("standard/criteria"))
    found = narrowed(space, {"adapter.name": "lora", "optim.lr": {"low": 1e-3, "high": 2e-3}})
    values = found.defaults() or draw_from_prior(found, np.random.RandomState(0))
    assert values["adapter.name"] == "lora"
    assert 1e-3 <= values["optim.lr"] <= 2e-3  # type: ignore[operator]
