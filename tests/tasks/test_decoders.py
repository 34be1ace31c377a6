"""Causal decoders are refused before the first trial, by every agent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2Model,
)

from supermax.agents import AGENTS
from supermax.errors import UserError
from supermax.search.doctor import BAD, WARNING, models
from supermax.search.settings import Settings
from supermax.search.spaces import space_for
from supermax.space import Space, choices
from supermax.space.presets import preset
from supermax.tasks.shapes import why_unusable
from supermax.tasks.space_fitting import fitted
from supermax.training.loop import train
from supermax.training.models.encoders import dropout_keys
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.steps.batches import collate
from tests.search.searches import search_in
from tests.training.corpora import Quiet, config, ready


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    folder = tmp_path / "gpt2"
    GPT2Model(GPT2Config(vocab_size=2048, n_embd=8, n_layer=1, n_head=2)).save_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer_for(find("tiny-bert"), ["some words"], tmp_path).save_pretrained(folder)
    return str(folder)


LAST = {"head.pooling": {"choices": ["last"]}}


def pooled_by_last_token(agent: str, decoder: str) -> Space:
    space = preset(agent, "demo", models=decoder).space
    return Space(name=agent, parameters={**space.parameters, **LAST})


@pytest.mark.parametrize("agent", AGENTS)
def test_a_decoder_is_used_where_only_its_last_token_is_read(decoder: str, agent: str) -> None:
    space = preset(agent, "demo", models=decoder).space
    if "head.pooling" in space.parameters:
        space = pooled_by_last_token(agent, decoder)
    if agent in ("criteria", "regression", "multilabel"):
        assert list(fitted(space, "cpu", agent).sources) == [decoder]
    else:  # its other tokens have not seen the text after them
        with pytest.raises(UserError, match="causal attention"):
            fitted(space, "cpu", agent)


def test_setting_the_pooling_is_all_that_it_takes(decoder: str) -> None:
    given = {"agent": "criteria", "preset": "demo", "models": [decoder], "trials": 1, "epochs": 1}
    settings = Settings(**given, narrow={"head.pooling": "last"})
    assert list(fitted(space_for(settings), "cpu", "criteria").sources) == [decoder]
    with pytest.raises(UserError, match=r"set head\.pooling to last"):
        fitted(space_for(Settings(**given)), "cpu", "criteria")


def test_logits_are_those_of_transformers(tmp_path: Path, decoder: str) -> None:
    """GPT2ForSequenceClassification reads the last token that is not padding."""
    wanted = config(encoder={"name": decoder}, head={"pooling": "last"}, text={"max_length": 256})
    one = ready(tmp_path, wanted)
    model = one.model.eval()
    plain = GPT2ForSequenceClassification.from_pretrained(decoder, num_labels=2).eval()
    plain.config.pad_token_id = one.pads[0]
    assert model.class_head is not None
    linear = model.class_head[-1]
    plain.score.weight.data.copy_(linear.weight)
    batch = collate(one.train.views, one.pads, np.arange(12))
    with torch.inference_mode():
        found = model(*batch.inputs).classes
        inputs = batch.inputs[0]
        expected = plain(input_ids=inputs.ids, attention_mask=inputs.mask).logits + linear.bias
    assert len(set(inputs.mask.sum(1).tolist())) > 1
    assert torch.allclose(found, expected, atol=1e-5)
    assert not model.encoders[0].packs
    result = train(one, Quiet())
    assert all(np.isfinite(row["train_loss"]) for row in result.curve)


def test_labels_are_learned_from_the_last_token(tmp_path: Path, decoder: str) -> None:
    text = {"max_length": 16, "doc_stride": 4, "long_texts": "windows"}
    own = {"encoder": {"name": decoder}, "head": {"pooling": "last"}, "text": text}
    result = train(ready(tmp_path, config("multilabel", **own)), Quiet())
    assert all(np.isfinite(row["train_loss"]) for row in result.curve)
    assert np.ptp([*result.evaluation.probabilities.values()], axis=0).min() > 0


def test_embeddings_of_a_decoder_are_frozen_with_its_first_layer(
    tmp_path: Path, decoder: str
) -> None:
    one = ready(tmp_path, config(encoder={"name": decoder, "frozen_layers": 1}))
    frozen = {n for n, p in one.model.named_parameters() if not p.requires_grad}
    assert {"encoders.0.model.wte.weight", "encoders.0.model.wpe.weight"} <= frozen
    assert dropout_keys(one.sources[0].config) == {
        "dropout": ["resid_pdrop", "embd_pdrop"],
        "attention_dropout": ["attn_pdrop"],
    }


def test_a_decoder_without_a_padding_token_is_padded(tmp_path: Path, decoder: str) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = Path(decoder) / name
        if file.exists():
            facts = json.loads(file.read_text())
            facts.pop("pad_token", None)
            file.write_text(json.dumps(facts))
    assert AutoTokenizer.from_pretrained(decoder).pad_token_id is None
    tokenizer = tokenizer_for(find(decoder), [], tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id is not None


@pytest.mark.parametrize("agent", AGENTS)
def test_a_decoder_alone_starts_no_search(tmp_path: Path, decoder: str, agent: str) -> None:
    space = preset(agent, "demo", models=decoder).space
    search = replace(search_in(tmp_path, agent, trials=1), space=space)
    with pytest.raises(UserError, match=r"causal attention \(gpt2\).*bert-base-uncased"):
        search.run(progress=False)
    assert not (tmp_path / "s.db").exists()


def test_a_decoder_among_encoders_is_left_out_and_named(decoder: str) -> None:
    space = preset("joint", "demo", models=f"tiny,{decoder}").space
    fit = fitted(space, "cpu")
    assert choices(fit.space, "encoder.name") == ["tiny"]
    assert choices(fit.space, "evidence_encoder.name") == ["tiny"]
    assert any("causal attention" in notice for notice in fit.notices)


def test_doctor_reports_it_too(decoder: str) -> None:
    (alone,) = models([decoder])
    assert (alone.state, decoder in alone.text) == (BAD, True)
    assert "causal attention" in alone.advice
    states = [finding.state for finding in models(["tiny", decoder])]
    assert states == [WARNING, WARNING]


def test_the_advice_can_be_followed(decoder: str) -> None:
    """The encoders that the message names are not causal. (Their weights are not installed.)"""
    reason = why_unusable(find(decoder))
    assert reason is not None
    named = reason.rpartition("for example ")[2].rstrip(".").split(", ")
    assert named
    for name in named:
        assert why_unusable(find(f"untrained/{name}")) is None
