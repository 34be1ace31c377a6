"""Any encoder of Hugging Face: loaded whole or not at all; its layers, whatever their names.

Source ──prepared()──▶ configuration ──load()──▶ encoder
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from supermax.errors import UserError
from supermax.training.sources import Source
from supermax.words import listed

_HIDDEN = ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout", "hidden_dropout")
_OF_POSITIONS = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
"""DeBERTa's norm of its relative positions, which every layer looks at."""
_ATTENTION = ("attention_probs_dropout_prob", "attention_dropout")
DROPOUTS = (*_HIDDEN, *_ATTENTION)


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
    model = finished(untrained(config) if source.place is None else _pretrained(source, config))
    if meta := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise UserError(listed(f"The weights of '{source.name}' were not loaded:", meta[:5]))
    return model


def finished(model: Any) -> nn.Module:
    """Without what is the project's own, and with what is worked out once only."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    _remember_positions(model)
    return model  # type: ignore[no-any-return]


def _remember_positions(model: Any) -> None:
    """DeBERTa works out its relative positions in every forward pass, with a word from the host.
    They depend on the length alone: once for each is enough."""
    stack: Any = getattr(model, "encoder", None)
    if not hasattr(stack, "get_rel_pos"):
        return
    build, of = type(stack).get_rel_pos, weakref.ref(stack)
    kept: dict[tuple[int, torch.device], Any] = {}

    def positions(states: Any, query_states: Any = None, relative_pos: Any = None) -> Any:
        if query_states is not None or relative_pos is not None:
            return build(of(), states, query_states, relative_pos)
        key = (states.size(-2), states.device)
        if key not in kept and _recording(states):
            return build(of(), states)  # there is nothing in it yet
        if key not in kept:
            with torch.inference_mode(False):  # training will need them as well
                kept[key] = build(of(), states)
        return kept[key]

    stack.get_rel_pos = positions


def _recording(states: torch.Tensor) -> bool:
    return states.is_cuda and torch.cuda.is_current_stream_capturing()


def know_width(encoder: Any, width: int, device: str) -> None:
    """Work out beforehand what depends on the width alone: where a step is being recorded, it
    cannot be."""
    stack: Any = getattr(encoder, "encoder", None)
    if hasattr(stack, "get_rel_pos"):
        stack.get_rel_pos(torch.empty((1, width, 1), device=device))


def _auto_model() -> Any:
    from transformers import AutoModel  # imported late: takes seconds, not every process needs it

    return AutoModel


def untrained(config: PretrainedConfig) -> Any:
    """An encoder that is made from its configuration."""
    with _hushed():
        return _auto_model().from_config(config)


def _pretrained(source: Source, config: PretrainedConfig) -> Any:
    # What is drawn before weights are loaded over it must not matter to what comes after.
    with _hushed(), torch.random.fork_rng(devices=[]):
        model, report = _auto_model().from_pretrained(
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


def import_model(source: Source) -> None:
    """The code of the encoder's family, without making one."""
    _auto_model()._model_mapping[type(source.config)]


def outline(source: Source) -> nn.Module:
    """The encoder without any weights: what it is made of, and how large that is."""
    with torch.device("meta"):
        model = untrained(source.config)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model  # type: ignore[no-any-return]


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
        elif "embed" in name or "rel_" in name or name in _OF_POSITIONS:
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
