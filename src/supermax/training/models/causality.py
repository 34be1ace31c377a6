"""Test on a small copy of an encoder whether its attention is causal.

PretrainedConfig ──is_causal()──▶ bool
"""

from __future__ import annotations

import contextlib

import torch
from transformers import PretrainedConfig

from supermax.training.models.encoders import untrained

_VOCABULARY, _LENGTH = 32, 8
_BY_LAYER = ("layer_types", "mlp_layer_types")  # lists with an entry for each layer


def is_causal(config: PretrainedConfig) -> bool:
    """Return whether each token attends only to those before it.

    A copy with two small layers and random weights runs on two texts that differ in the last
    token. If the first token's state is the same, attention is causal. The model type says less:
    XLNet generates texts and attends both ways, BERT with `is_decoder` does not. For model types
    that cannot be made smaller in this way, the lists of transformers decide.
    """
    try:
        first, other = _first_states(_small(config))
    except Exception:  # whatever a model type raises for sizes that it does not support
        from transformers.models.auto import modeling_auto as known

        kind = config.model_type
        generates = kind in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        return generates and kind not in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return bool(torch.allclose(first, other, rtol=0, atol=1e-12))


def _small(config: PretrainedConfig) -> PretrainedConfig:
    small = type(config).from_dict(config.to_dict())
    sizes = {
        "hidden_size": 8 * small.num_attention_heads,
        "head_dim": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "vocab_size": _VOCABULARY,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 1,
    }
    sizes |= {key: list(getattr(small, key, None) or ())[:2] for key in _BY_LAYER}
    for key, value in sizes.items():
        if getattr(small, key, None) is not None:
            with contextlib.suppress(AttributeError):  # read-only: derived from others
                setattr(small, key, value)
    return small


def _first_states(config: PretrainedConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states of the first token of two texts that differ in the last one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = untrained(config).double().eval()
    ids = torch.arange(_VOCABULARY - _LENGTH - 1, _VOCABULARY - 1).unsqueeze(0)
    other = ids.clone()
    other[0, -1] += 1
    with torch.inference_mode():
        states = [
            model(input_ids=text, attention_mask=torch.ones_like(text)).last_hidden_state[0, 0]
            for text in (ids, other)
        ]
    return states[0], states[1]
