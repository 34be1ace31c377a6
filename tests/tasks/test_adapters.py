"""LoRA in a space: found out before the first trial what cannot be, and planned memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from supermax.errors import UserError
from supermax.space import Space, load, narrowed, with_lora
from supermax.space.presets import preset
from supermax.tasks import shapes
from supermax.tasks.fits import combinations, footprints
from supermax.tasks.objective import configured
from supermax.tasks.preflight import check_space
from supermax.tasks.space_fitting import fitted
from supermax.training.models.sources import find
from supermax.training.steps.execution import Execution

CONDITION = "adapter.name == 'none'"


def own(**parameters: Any) -> Space:
    return Space(
        name="own",
        parameters={
            "encoder.name": {"choices": ["tiny-bert"]},
            "adapter.name": {"choices": ["none", "lora"]},
            **{name.replace("_", ".", 1): p for name, p in parameters.items()},
        },
    )


LAYERS = {"type": "int", "low": 0, "high": 3}
DECAY = {"type": "float", "low": 0.8, "high": 1.0}


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        ({"encoder_frozen_layers": LAYERS}, ["encoder.frozen_layers"]),
        (
            {"encoder_frozen_layers": LAYERS, "optim_layer_decay": DECAY},
            ["encoder.frozen_layers", "optim.layer_decay"],
        ),
        ({"optim_layer_decay": {**DECAY, "when": "optim.lr > 0.1"}}, ["optim.layer_decay"]),
        ({"encoder_frozen_layers": {**LAYERS, "when": CONDITION}}, []),
        ({"optim_layer_decay": [{**DECAY, "when": CONDITION}, {"choices": [1.0]}]}, []),
        ({"optim_layer_decay": [{"when": "adapter.name == 'lora'", "choices": [1.0]}, DECAY]}, []),
        (
            {"encoder_frozen_layers": {"choices": [0]}, "optim_layer_decay": {**DECAY, "low": 1}},
            [],
        ),
    ],
)
def test_settings_without_a_meaning_are_found_before_the_first_trial(
    parameters: dict[str, Any], refused: list[str]
) -> None:
    space = own(**parameters, optim_lr={"type": "float", "low": 1e-5, "high": 1e-3})
    if not refused:
        check_space("criteria", space)
        return
    with pytest.raises(UserError) as caught:
        check_space("criteria", space)
    text = str(caught.value)
    assert f"when: {CONDITION}" in text
    for name in ("encoder.frozen_layers", "optim.layer_decay"):
        assert (f"{name}: with an adapter" in text) == (name in refused)


@pytest.mark.parametrize("agent", ["criteria", "evidence", "share", "joint", "regression"])
@pytest.mark.parametrize("name", ["demo", "standard", "max"])
def test_spaces_with_an_adapter_are_valid_configurations(agent: str, name: str) -> None:
    space = with_lora(preset(agent, name).space)
    check_space(agent, space)
    only = narrowed(space, {"adapter.name": "lora"})
    check_space(agent, only)
    sampled: dict[str, Any] = {}
    for key, value in (only.defaults() or {}).items():
        part, _, key = key.partition(".")
        sampled.setdefault(part, {})[key] = value
    config = configured(agent, sampled, {})
    assert (config.adapter.name, config.adapter.rank) == ("lora", 8)
    plain = configured(agent, {**sampled, "adapter": {}, "optim": {}}, {}).optim.lr
    assert config.optim.lr >= 5 * plain


def test_a_missing_package_stops_a_search_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    space = load("demo/criteria")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "peft" else found(name)
    )
    with pytest.raises(UserError, match="pip install 'supermax"):
        fitted(with_lora(space), "cpu")
    assert fitted(space, "cpu").sources
    assert fitted(narrowed(with_lora(space), {"adapter.name": "none"}), "cpu").sources


def test_an_encoder_without_matching_layers_stops_a_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shapes, "_adapted", {})

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.ffn = nn.Conv1d(4, 4, 1), nn.Linear(4, 4)

    mixer = nn.Sequential()
    mixer.add_module("layers", nn.ModuleList([Layer(), Layer()]))
    monkeypatch.setattr(shapes, "outline", lambda source: mixer)
    space = with_lora(load("demo/criteria"))
    with pytest.raises(UserError, match="'tiny' has no linear layers in its attention"):
        fitted(space, "cpu")
    advised = narrowed(space, {"adapter.target_modules": "all-linear"})
    assert fitted(advised, "cpu").sources


def test_adapters_are_part_of_what_fits() -> None:
    """LoRA can be searched for an encoder that is too large to be trained whole."""
    space = with_lora(preset("criteria", "standard", models="untrained/bert-large-uncased").space)
    source, execution = find("untrained/bert-large-uncased"), Execution("cuda", precision="bf16")  # type: ignore[arg-type]
    specs = combinations(space, "criteria", source, execution)
    assert {spec.adapter > 0 for spec in specs} == {True, False}
    assert len({spec.adapter for spec in specs}) == 3
    whole = narrowed(space, {"adapter.name": "none"})
    lora = narrowed(space, {"adapter.name": "lora"})
    full, small = (
        max(footprints(each, [source], "criteria", execution), key=lambda found: found.states)
        for each in (whole, lora)
    )
    assert small.memory < 0.5 * full.memory
    assert small.states < 0.2 * full.states
    assert small.weights < 0.2 * full.weights
