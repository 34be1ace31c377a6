"""Encoder configurations without weights: full-size for memory and speed, tiny for tests.

The values of full-size ones are those of the published checkpoints' config files; of Ettin only
the sizes, the rest is ModernBERT's.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformers import AutoConfig, PretrainedConfig

from supermax._util.attributes import UNTRAINED


def _sizes(hidden: int, layers: int, heads: int, intermediate: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }


_BASE, _LARGE = _sizes(768, 12, 12, 3072), _sizes(1024, 24, 16, 4096)
_ROBERTA = {
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
_DEBERTA_V3: dict[str, object] = {
    "vocab_size": 128_100,
    **_BASE,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
_MM_BERT: dict[str, object] = {
    "vocab_size": 256_000,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "cls_token_id": 1,
    "sep_token_id": 1,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 160_000.0}
        for kind in ("full_attention", "sliding_attention")
    },
}
_EURO_BERT: dict[str, object] = {
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0},
}
FULL: dict[str, tuple[str, Mapping[str, object]]] = {
    "bert-base-uncased": ("bert", {}),
    "bert-large-uncased": ("bert", _LARGE),
    "roberta-base": ("roberta", {"vocab_size": 50_265, **_ROBERTA}),
    "roberta-large": ("roberta", {"vocab_size": 50_265, **_ROBERTA, **_LARGE}),
    "microsoft/deberta-v3-base": ("deberta-v2", _DEBERTA_V3),
    "microsoft/deberta-v3-large": ("deberta-v2", {**_DEBERTA_V3, **_LARGE}),
    "xlm-roberta-base": ("xlm-roberta", {"vocab_size": 250_002, **_ROBERTA}),
    "google/electra-base-discriminator": ("electra", {"embedding_size": 768, **_BASE}),
    "google/electra-large-discriminator": ("electra", {"embedding_size": 1024, **_LARGE}),
    "sentence-transformers/all-MiniLM-L6-v2": ("bert", _sizes(384, 6, 12, 1536)),
    "answerdotai/ModernBERT-base": ("modernbert", {}),
    "answerdotai/ModernBERT-large": ("modernbert", _sizes(1024, 28, 16, 2624)),
    "jhu-clsp/mmBERT-small": ("modernbert", {**_MM_BERT, **_sizes(384, 22, 6, 1152)}),
    "jhu-clsp/mmBERT-base": ("modernbert", _MM_BERT),
    "jhu-clsp/ettin-encoder-17m": ("modernbert", _sizes(256, 7, 4, 384)),
    "jhu-clsp/ettin-encoder-32m": ("modernbert", _sizes(384, 10, 6, 576)),
    "jhu-clsp/ettin-encoder-68m": ("modernbert", _sizes(512, 19, 8, 768)),
    "jhu-clsp/ettin-encoder-150m": ("modernbert", _sizes(768, 22, 12, 1152)),
    "jhu-clsp/ettin-encoder-400m": ("modernbert", _sizes(1024, 28, 16, 2624)),
    "EuroBERT/EuroBERT-210m": ("eurobert", _EURO_BERT),
    "EuroBERT/EuroBERT-610m": (
        "eurobert",
        {**_EURO_BERT, **_sizes(1152, 26, 18, 4096), "num_key_value_heads": 6},
    ),
    "distilbert-base-uncased": ("distilbert", {}),
}
_SMALL = {
    "vocab_size": 2048,
    **_sizes(64, 2, 2, 128),
    "max_position_embeddings": 514,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
_SMALL_MODERN = {**_SMALL, "local_attention": 32}
TINY: dict[str, tuple[str, Mapping[str, object]]] = {
    "tiny": ("modernbert", _SMALL_MODERN),
    "tiny-bert": ("bert", _SMALL),
    "tiny-roberta": ("roberta", {**_ROBERTA, **_SMALL}),
    "tiny-deberta": ("deberta-v2", {**_DEBERTA_V3, **_SMALL, "position_buckets": 32}),
    "tiny-xlmr": ("xlm-roberta", {**_ROBERTA, **_SMALL}),
    "tiny-electra": ("electra", {**_SMALL, "embedding_size": 32}),
    "tiny-modernbert": ("modernbert", _SMALL_MODERN),
    "tiny-eurobert": (
        "eurobert",
        {**_SMALL, **_sizes(64, 2, 4, 128), "num_key_value_heads": 2},
    ),
    "tiny-distilbert": (
        "distilbert",
        {"vocab_size": 2048, "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128,
         "max_position_embeddings": 514},
    ),
}  # fmt: skip


def architecture_names() -> list[str]:
    """Return the names of all encoders that can be built without pretrained weights."""
    return [*TINY, *(f"{UNTRAINED}{name}" for name in FULL)]


def configuration(name: str) -> PretrainedConfig:
    """Return the configuration of one of `architecture_names()`. Raises KeyError for others."""
    family, settings = TINY[name] if name in TINY else FULL[name.removeprefix(UNTRAINED)]
    return AutoConfig.for_model(family, **settings)
