"""Find out on a small copy of an encoder whether its tokens see the whole text.

PretrainedConfig ──is_causal()──▶ bool
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from transformers import PretrainedConfig

from supermax.training.encoders import untrained

_WORDS, _LENGTH = 32, 8
_BY_LAYER = ("layer_types", "mlp_layer_types")


def is_causal(config: PretrainedConfig) -> bool:
    """Return whether each token sees only those before it.

    A copy with two small layers and random weights is asked twice, with another last token; where
    that changes nothing at the first one, attention is causal. What a family is called says less:
    XLNet generates texts and looks both ways, BERT with `is_decoder` does not. Families that
    cannot be made smaller in this way go by the lists of transformers.
    """
    try:
        first, other = _first_states(_small(config))
    except Exception:  # a family raises whatever sizes it does not know provoke
        from transformers.models.auto import modeling_auto as known

        kind = config.model_type
        generates = kind in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        return generates and kind not in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return bool(torch.allclose(first, other, rtol=0, atol=1e-12))


def _small(config: PretrainedConfig) -> Any:
    small: Any = type(config).from_dict(config.to_dict())
    sizes = {
        "hidden_size": 8 * small.num_attention_heads,
        "head_dim": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "vocab_size": _WORDS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 1,
    }
    sizes |= {key: list(getattr(small, key, None) or ())[:2] for key in _BY_LAYER}
    for key, value in sizes.items():
        if getattr(small, key, None) is not None:
            with contextlib.suppress(AttributeError):  # it follows from others
                setattr(small, key, value)
    return small


def _first_states(config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """States of the first token of two texts that differ in the last one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = untrained(config).double().eval()
    ids = torch.arange(_WORDS - _LENGTH - 1, _WORDS - 1).unsqueeze(0)
    other = ids.clone()
    other[0, -1] += 1
    with torch.inference_mode():
        states = [
            model(input_ids=some, attention_mask=torch.ones_like(some)).last_hidden_state[0, 0]
            for some in (ids, other)
        ]
    return states[0], states[1]
