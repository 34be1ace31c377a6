"""A copy of first weights is what a new start would give, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from supermax.training import prepare
from supermax.training.config import read_config
from supermax.training.models import architectures
from supermax.training.models.encoders import load_encoder, prepared_config
from supermax.training.models.initial_weights import InitialWeights
from supermax.training.models.sources import Source, find
from supermax.training.models.tokenizers import tokenizer_for

FAMILIES = sorted(set(architectures.TINY) - {"tiny"})


def test_heads_depend_on_the_seed_only(tmp_path: Path) -> None:
    """Heads of other seeds differ, whether the encoder was loaded or copied."""
    torch.manual_seed(0)
    load_encoder(find("tiny-bert"), find("tiny-bert").config).save_pretrained(tmp_path)  # type: ignore[operator]
    source, first, drawn = find(str(tmp_path)), InitialWeights(), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        first.encoder(source, prepared_config(source, 0.1, 0.1), "cpu")
        drawn.append(torch.rand(3))
        torch.manual_seed(seed)
        load_encoder(source, prepared_config(source, 0.1, 0.1))
        assert torch.equal(torch.rand(3), drawn[-1])
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_and_the_rng_state_after_it_are_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, first, loads = find(family), InitialWeights(), []

    def counted(*of: object) -> torch.nn.Module:
        loads.append(of)
        return load_encoder(*of)  # type: ignore[arg-type]

    monkeypatch.setattr("supermax.training.models.initial_weights.load_encoder", counted)
    found = []
    for dropout in (0.1, 0.3):
        torch.manual_seed(7)
        config = prepared_config(source, dropout, dropout)
        model = first.encoder(source, config, "cpu")
        after = torch.rand(3)
        torch.manual_seed(7)
        anew = load_encoder(source, config)
        assert torch.equal(after, torch.rand(3))
        ours, theirs = tensors(model), tensors(anew)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor), name
            assert ours[name].requires_grad == tensor.requires_grad
        assert type(model) is type(anew)
        assert model.config.to_dict() == anew.config.to_dict()  # type: ignore[union-attr,operator]
        ids = torch.arange(10, 34).reshape(2, 12)
        outputs = [m.eval()(input_ids=ids).last_hidden_state for m in (model, anew)]
        assert torch.equal(*outputs)
        outputs[0].sum().backward()
        found.append(model)
    assert len(loads) == 1
    with torch.no_grad():
        next(found[1].parameters()).fill_(9.0)  # a trial trains its own
    torch.manual_seed(7)
    third = first.encoder(source, prepared_config(source, 0.1, 0.1), "cpu")
    assert next(third.parameters()).max() < 9
    assert first.size >= sum(p.numel() * 4 for p in third.parameters())


def test_another_seed_or_encoder_is_not_cached() -> None:
    first = InitialWeights()
    weights = []
    for name, seed in (("tiny-bert", 1), ("tiny-bert", 2), ("tiny-electra", 2), ("tiny-bert", 1)):
        torch.manual_seed(seed)
        source = find(name)
        model = first.encoder(source, prepared_config(source, 0.1, 0.1), "cpu")
        weights.append(next(model.parameters()).detach().clone())
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[3])


def _too_much(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("names", [("tiny-bert", "tiny-electra"), ("tiny-bert", "tiny-bert")])
def test_both_encoders_of_a_trial_are_kept_and_no_more(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, loads = InitialWeights(), []

    def counted(*of: object) -> torch.nn.Module:
        loads.append(of)
        return load_encoder(*of)  # type: ignore[arg-type]

    def trial(*names: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        sources = [find(name) for name in names]
        models = [
            first.encoder(s, prepared_config(s, 0.1, 0.1), "cpu", len(names)) for s in sources
        ]
        return [weight for model in models for weight in model.parameters()]

    monkeypatch.setattr("supermax.training.models.initial_weights.load_encoder", counted)
    before = trial(*names)
    with monkeypatch.context() as patch:
        patch.setattr("supermax.training.models.initial_weights._copy", _too_much)
        with pytest.raises(MemoryError):  # which loses nothing
            trial(*names)
    again = trial(*names)
    assert len(loads) == 2
    assert all(map(torch.equal, before, again))
    both = first.size
    trial("tiny-electra")
    assert 0 < first.size < both


def test_a_trial_asks_for_all_its_encoders_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def encoder(source: Source, made: Any, _: str, of: int) -> torch.nn.Module:
        asked.append(of)
        return load_encoder(source, made)

    monkeypatch.setattr(prepare.INITIAL_WEIGHTS, "encoder", encoder)
    for agent, wanted in (("joint", [2, 2]), ("share", [1])):
        config = read_config({"agent": agent, "encoder": {"name": "tiny"}})
        sources = prepare.encoders_of(config)
        tokenizers = tuple(tokenizer_for(source, ["a text"], tmp_path) for source in sources)
        prepare._build_model(config, sources, tokenizers, 2, "cuda")
        assert asked == wanted
        asked.clear()
