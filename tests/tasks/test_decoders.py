"""Causal decoders are refused before the first trial, by every agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2Model

from supermax.agents import AGENTS
from supermax.errors import UserError
from supermax.search.doctor import BAD, WARNING, models
from supermax.space import choices
from supermax.space.presets import preset
from supermax.tasks.shapes import why_unusable
from supermax.tasks.space_fitting import fitted
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from tests.search.searches import search_in


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    folder = tmp_path / "gpt2"
    GPT2Model(GPT2Config(vocab_size=2048, n_embd=8, n_layer=1, n_head=2)).save_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer_for(find("tiny-bert"), ["some words"], tmp_path).save_pretrained(folder)
    return str(folder)


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
