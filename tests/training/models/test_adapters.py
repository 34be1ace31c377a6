"""LoRA adapters: what they change and train, that gradients are exact, and messages."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import peft
import pytest
import torch
from torch import Tensor, nn

from supermax.errors import UserError
from supermax.training.config import AdapterConfig, Config, read_config
from supermax.training.loop import train
from supermax.training.models import adapters
from supermax.training.models.adapters import (
    adapted,
    merged,
    merged_in_place,
    targets,
)
from supermax.training.models.architectures import TINY, configuration
from supermax.training.models.encoders import untrained
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import Indices, collate, micro_batches
from supermax.training.steps.step import loss_denominators
from tests.training.corpora import Quiet, config, logits, ready

FAMILIES = sorted(set(TINY) - {"tiny"})
LORA = {"name": "lora", "rank": 4, "ratio": 1.5}


def lora(agent: str = "criteria", **parts: Any) -> Config:
    """A head of two layers: one that is lost shows."""
    more: dict[str, Any] = {
        "encoder": {"name": "tiny-bert"},
        "adapter": LORA,
        "head": {"depth": 2, "pooling": "attention"},
        "optim": {"lr": 1e-2},
    }
    for key, value in parts.items():
        more[key] = {**more.get(key, {}), **value}
    return config(agent, **more)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_every_family_are_found(family: str) -> None:
    encoder = untrained(configuration(family))
    attention = targets(encoder, "attention", family)
    every = targets(encoder, "all-linear", family)
    assert set(attention) < set(every)
    per_layer = 2 if family == "tiny-modernbert" else 4
    assert len(attention) == 2 * per_layer
    feed_forward = 3 if family == "tiny-eurobert" else 2
    assert len(every) == 2 * (per_layer + feed_forward)
    assert all(isinstance(encoder.get_submodule(name), nn.Linear) for name in every)


@pytest.mark.parametrize("agent", ["criteria", "joint"])
def test_only_adapter_and_heads_are_trained(tmp_path: Path, agent: str) -> None:
    prepared = ready(tmp_path, lora(agent, train={"epochs": 1}), n=12)
    names = {name for name, p in prepared.model.named_parameters() if p.requires_grad}
    assert {n for n in names if n.startswith("encoders.")} == {
        n for n, _ in prepared.model.named_parameters() if ".lora_" in n
    }
    assert names >= set(prepared.model.new_parameters)
    before = {n: w.clone() for n, w in prepared.model.state_dict().items()}
    train(prepared, Quiet())
    after = prepared.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == names


def test_an_adapter_begins_as_none(tmp_path: Path) -> None:
    """The first evaluation is that of the encoder without an adapter."""
    with_one, without = (ready(tmp_path, wanted, n=8) for wanted in (lora(), config_without()))
    torch.testing.assert_close(
        logits(with_one.model, with_one), logits(without.model, without), rtol=0, atol=0
    )


def config_without() -> Config:
    return lora(adapter={"name": "none"})


def trained(tmp_path: Path, **parts: Any) -> tuple[Prepared, Mapping[str, Tensor]]:
    prepared = ready(tmp_path, lora(**parts), n=12)
    return prepared, train(prepared, Quiet()).weights


def test_saved_weights_are_those_that_are_trained(tmp_path: Path) -> None:
    prepared, saved = trained(tmp_path)
    parameters = dict(prepared.model.named_parameters())
    assert all(parameters[name].requires_grad for name in saved if name in parameters)
    assert sum(w.numel() for w in saved.values()) < 0.1 * sum(
        p.numel() for p in parameters.values()
    )
    expected = logits(prepared.model, prepared)
    again = ready(tmp_path, lora(), n=12)
    assert not torch.allclose(logits(again.model, again), expected)
    again.model.load_saved(saved)
    assert torch.equal(logits(again.model, again), expected)


@pytest.mark.parametrize("part", ["class_head", "pooling", "lora_B"])
def test_a_part_that_is_missing_is_never_left_out_silently(tmp_path: Path, part: str) -> None:
    prepared, saved = trained(tmp_path, train={"epochs": 1})
    before = {name: weight.clone() for name, weight in prepared.model.state_dict().items()}
    rest = {name: weight + 1 for name, weight in saved.items() if part not in name}
    assert len(rest) < len(saved)
    with pytest.raises(RuntimeError, match=f"Missing or unexpected weights: .*{part}"):
        prepared.model.load_saved(rest)
    now = prepared.model.state_dict()
    assert all(torch.equal(now[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("family", ["tiny-bert", "tiny-deberta", "tiny-modernbert"])
def test_merged_weights_are_those_of_peft(tmp_path: Path, family: str) -> None:
    prepared, saved = trained(tmp_path, encoder={"name": family})
    ours = merged(prepared.model, {**prepared.model.state_dict(), **saved})
    plain = ready(tmp_path, lora(encoder={"name": family}, adapter={"name": "none"}), n=12)
    prefix, encoder = "encoders.0.model.", copy.deepcopy(plain.model.encoders[0].model)
    settings = cast(Any, prepared.model.encoders[0].model).peft_config["default"]
    theirs = peft.get_peft_model(encoder, settings)
    state = {
        name.replace(prefix, "base_model.model.").replace(".default.", "."): weight
        for name, weight in saved.items()
        if ".lora_" in name
    }
    assert not peft.set_peft_model_state_dict(theirs, state).unexpected_keys
    expected = cast(Any, theirs).merge_and_unload().state_dict()
    assert {n.removeprefix(prefix) for n in ours if n.startswith(prefix)} == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(ours[prefix + name], weight, rtol=0, atol=1e-7)
    plain.model.load_state_dict(ours)
    found, wanted = logits(plain.model, plain), logits(prepared.model, prepared)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_merging_in_place_computes_the_same_and_is_undone(tmp_path: Path) -> None:
    prepared, _ = trained(tmp_path, train={"epochs": 1})
    expected = logits(prepared.model, prepared)
    base = {n: w.clone() for n, w in prepared.model.state_dict().items() if "base_layer" in n}
    with merged_in_place(prepared.model):
        now = prepared.model.state_dict()
        assert not any(torch.equal(now[n], w) for n, w in base.items() if w.ndim > 1)
        found = logits(prepared.model, prepared)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    now = prepared.model.state_dict()
    for name, weight in base.items():
        torch.testing.assert_close(now[name], weight, rtol=0, atol=1e-6)


def gradients(prepared: Prepared, batch: Indices, size: int) -> dict[str, Tensor]:
    step, data = prepared.step, prepared.train
    step.model.train()
    denominators = loss_denominators(*data.targets(batch), step.weights)
    for part in micro_batches(batch, size):
        step.micro(collate(data.views, prepared.pads, data.rows(part)), denominators)
    found = {n: p.grad.clone() for n, p in step.model.named_parameters() if p.grad is not None}
    step.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("agent", ["criteria", "share"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_micro_batches_are_those_of_the_batch(
    tmp_path: Path, agent: str, checkpointing: bool
) -> None:
    wanted = lora(agent, loss={"balance": "weighted"}, train={"epochs": 1})
    prepared = ready(tmp_path, wanted, n=12, checkpoint_activations=checkpointing)
    train(prepared, Quiet())  # the second matrices are 0 at first, and so the first's gradients
    prepared.model.double()
    batch = prepared.train.chosen[:11]
    whole, parts = (gradients(prepared, batch, size) for size in (len(batch), 3))
    trained = {name for name, p in prepared.model.named_parameters() if p.requires_grad}
    assert whole.keys() == parts.keys() == trained
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-9, atol=1e-12)
    assert all(whole[name].abs().max() > 0 for name in trained if ".lora_" in name)


# Messages.


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"encoder": {"frozen_layers": 1}},
            "encoder.frozen_layers is 1, .* leave it out, or .* 0",
        ),
        ({"optim": {"layer_decay": 0.9}}, "optim.layer_decay is 0.9, .* or set it to 1"),
    ],
)
def test_settings_without_a_meaning_are_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        lora(**parts)
    lora(**parts, adapter={"name": "none"})


def test_wrong_values_are_named() -> None:
    data = {"encoder": {"name": "tiny"}, "adapter": {"name": "lorra", "rank": 0, "alpha": 1}}
    with pytest.raises(UserError) as caught:
        read_config(data)
    for words in ("adapter.name", "adapter.rank", "adapter.alpha: there is no such key"):
        assert words in str(caught.value)


class Layer(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def test_an_encoder_without_layers_to_adapt_is_named() -> None:
    layers = nn.ModuleList(Layer(mix=nn.Conv1d(4, 4, 1), ffn=nn.Linear(4, 4)) for _ in range(2))
    mixing = Layer(layers=layers)
    with pytest.raises(UserError, match="'mixer' has no linear layers in its attention") as caught:
        targets(mixing, "attention", "mixer")
    assert "adapter.target_modules: all-linear, or adapter.name: none" in str(caught.value)
    assert "Conv1d" in str(caught.value)
    assert targets(mixing, "all-linear", "mixer") == ["layers.0.ffn", "layers.1.ffn"]
    layers = nn.ModuleList(Layer(attention=nn.Conv1d(4, 4, 1)) for _ in range(2))
    with pytest.raises(UserError, match=r"in its layers, .* Set adapter.name: none"):
        targets(Layer(layers=layers), "all-linear", "conv")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "peft" else found(name)
    )
    with pytest.raises(UserError, match=r"pip install 'supermax\[lora\]', or set adapter.name"):
        ready(tmp_path, lora(), n=4)
    ready(tmp_path, config_without(), n=4)


def test_a_package_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr(adapters, "check_installed", lambda: None)
    with pytest.raises(UserError, match="installed, but does not load"):
        adapters.import_peft()


def test_scaling_is_alpha_by_rank(tmp_path: Path) -> None:
    wanted = AdapterConfig(name="lora", rank=8, ratio=2)
    assert wanted.alpha == 16
    prepared = ready(tmp_path, lora(adapter={"rank": 3, "ratio": 0.5}), n=4)
    layers = [layer for _, layer in adapted(prepared.model)]
    assert {layer.scaling["default"] for layer in layers} == {0.5}
    assert {layer.r["default"] for layer in layers} == {3}
