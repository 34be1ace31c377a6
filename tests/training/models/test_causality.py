"""Encoders are told from decoders by what their tokens see, whatever they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from supermax.training.models import architectures
from supermax.training.models.causality import is_causal


@pytest.mark.parametrize("name", architectures.architecture_names())
def test_built_in_encoders_are_not_causal(name: str) -> None:
    assert not is_causal(architectures.configuration(name))


@pytest.mark.parametrize(
    ("kind", "more", "causal"),
    [
        ("gpt2", {}, True),
        ("llama", {}, True),
        ("llama", {"num_key_value_heads": 8}, True),
        ("mistral", {}, True),
        ("opt", {}, True),
        ("bert", {"is_decoder": True}, True),
        ("modernbert-decoder", {}, True),
        ("xlnet", {}, False),
        ("albert", {}, False),
        ("mamba", {}, True),  # without attention: by the list of transformers
        ("fnet", {}, False),
    ],
)
def test_attention_decides_and_not_the_model_type(
    kind: str, more: dict[str, Any], causal: bool
) -> None:
    config = AutoConfig.for_model(kind, **more)
    before, state = config.to_dict(), torch.get_rng_state()
    assert is_causal(config) == causal
    assert config.to_dict() == before
    assert torch.equal(torch.get_rng_state(), state)
