"""Sizes of an encoder, and reasons why agents cannot use it, from its configuration alone.

Source ──encoder_of()──▶ memory.facts.EncoderSizes;  Source ──why_unusable()──▶ a reason, or None
       ──adapted_layers()──▶ memory.facts.AdaptedLayers
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from torch import nn
from transformers import PretrainedConfig

from supermax._util.files import make_private, write_whole
from supermax.memory.facts import AdaptedLayers, EncoderSizes
from supermax.memory.measurements import default_folder
from supermax.training.models.adapters import attention_of, targets
from supermax.training.models.causality import is_causal
from supermax.training.models.encoders import depth_of, layer_list, outline
from supermax.training.models.sources import Source

T = TypeVar("T")
_INNER = (
    "intermediate_size",
    "hidden_dim",
    "n_inner",
    "ffn_dim",
)  # names of the feed-forward size in configurations
_ENCODER = TypeAdapter(EncoderSizes)
_ADAPTED = TypeAdapter(AdaptedLayers)
_BOOL = TypeAdapter(bool)
_USABLE = ("bert-base-uncased", "roberta-base", "microsoft/deberta-v3-base")
_known: dict[str, EncoderSizes] = {}
_adapted: dict[tuple[str, str], AdaptedLayers] = {}
_causal: dict[str, bool] = {}


def encoder_of(source: Source) -> EncoderSizes:
    """Return the sizes of an encoder, cached on disk.

    The first call for an encoder imports its code, which takes seconds.
    """
    if (mark := source.fingerprint) not in _known:
        file = _file("encoder", mark)
        sizes = _read(file, _ENCODER)
        if sizes is None or sizes.fingerprint != mark:
            sizes = _measure(source, outline(source))
            _write(file, asdict(sizes))
        _known[mark] = sizes
    return _known[mark]


def adapted_layers(source: Source, kind: str) -> AdaptedLayers:
    """Return the layers that an adapter of this kind (`adapter.target_modules`) changes, cached on
    disk. Raises UserError if there are none."""
    if (key := (source.fingerprint, kind)) not in _adapted:
        file = _file(f"adapted-{kind}", source.fingerprint)
        layers = _read(file, _ADAPTED)
        if layers is None:
            layers = _adapted_layers(outline(source), kind, source.name)
            _write(file, asdict(layers))
        _adapted[key] = layers
    return _adapted[key]


def _adapted_layers(model: nn.Module, kind: str, name: str) -> AdaptedLayers:
    every = targets(model, "all-linear", name)
    chosen = targets(model, kind, name)
    adapted, others = (
        _inputs(model, paths) for paths in (chosen, [path for path in every if path not in chosen])
    )
    layers = [cast(nn.Linear, model.get_submodule(path)) for path in chosen]
    return AdaptedLayers(
        count=len(layers),
        inputs=sum(layer.in_features for layer in layers),
        outputs=sum(layer.out_features for layer in layers),
        distinct=sum(_distinct(inputs) for inputs in adapted.values()),
        frozen=sum(map(sum, others.values())),
        frozen_distinct=sum(_distinct(inputs) for inputs in others.values()),
        attention_outputs=sum(
            inputs[-1] for path, inputs in adapted.items() if attention_of(path)
        ),
        norm_features=sum(_norm_features(module) for module in model.modules()),
    )


def _inputs(model: nn.Module, paths: Sequence[str]) -> dict[str, list[int]]:
    """Return the input features of linear layers, by the module of their attention or the one
    that holds them, in the order in which the model registers them: the last layer of an
    attention module takes the output of attention as its input."""
    by_module: dict[str, list[int]] = {}
    for path in paths:
        layer = cast(nn.Linear, model.get_submodule(path))
        module = attention_of(path) or path.rpartition(".")[0]
        by_module.setdefault(module, []).append(layer.in_features)
    return by_module


def _distinct(inputs: Sequence[int]) -> int:
    """Return the features of the distinct inputs of a module: query, key and value have one, and
    so have the gate and the projection beside it; the last layer has another."""
    return inputs[0] + (inputs[-1] if len(inputs) > 1 else 0)


def _norm_features(module: nn.Module) -> int:
    """Return the features of a norm that multiplies its output by its weight in Python, as the
    RMS norms of transformers do; 0 for other modules."""
    if not type(module).__name__.endswith("RMSNorm") or isinstance(module, nn.RMSNorm):
        return 0
    return sum(weight.numel() for weight in module.parameters())


def why_unusable(source: Source, last_token: bool = False) -> str | None:
    """Return the reason why agents cannot use an encoder; None if they can. Cached on disk.

    With `last_token` only the state of the last token is read, which suits a decoder too.

    The first call for an encoder imports its code, which takes seconds.
    """
    if (mark := source.fingerprint) not in _causal:
        file = _file("causal", mark)
        if (causal := _read(file, _BOOL)) is None:
            causal = is_causal(source.config)
            _write(file, causal)
        _causal[mark] = causal
    if not _causal[mark] or last_token:
        return None
    return (
        f"The encoder '{source.name}' cannot be used: it is a decoder with causal attention "
        f"({source.config.model_type}), whose tokens attend only to those before them, and agents "
        f"need tokens that attend to the whole text. To classify texts or to predict numbers by "
        f"its last token, set head.pooling to last; otherwise use an encoder, for example "
        f"{', '.join(_USABLE)}."
    )


def _file(kind: str, fingerprint: str) -> Path:
    return default_folder() / f"{kind}-{fingerprint}-{version('transformers')}.json"


def _read(file: Path, adapter: TypeAdapter[T]) -> T | None:
    """Return a value from the cache; None if it is missing or damaged."""
    try:
        return adapter.validate_json(file.read_bytes(), strict=True)
    except (OSError, ValidationError):
        return None


def _write(file: Path, value: object) -> None:
    with contextlib.suppress(OSError):  # a missing cache only costs time
        make_private(file.parent)
        write_whole(file, json.dumps(value))


def _inner(config: PretrainedConfig) -> int:
    """Return the feed-forward size; four times the hidden size where none is given."""
    found = (getattr(config, key, None) for key in _INNER)
    return int(next((size for size in found if size), 4 * config.hidden_size))


def _measure(source: Source, model: nn.Module) -> EncoderSizes:
    config, depths = source.config, depth_of(model)
    stack, modules = layer_list(model)
    layers = len(modules)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    by_depth = [0] * (layers + 1)
    for name, size in sizes.items():
        by_depth[depths[name]] += size
    in_layers = {name: size for name, size in sizes.items() if name.startswith(f"{stack}.")}
    matrices = sum(s for n, s in in_layers.items() if model.get_parameter(n).ndim > 1)
    buckets = getattr(config, "position_buckets", 0) or 0
    return EncoderSizes(
        name=source.name,
        family=str(config.model_type),
        fingerprint=source.fingerprint,
        hidden=int(config.hidden_size),
        inner=_inner(config),
        heads=int(config.num_attention_heads),
        embeddings=by_depth[0],
        by_layer=tuple(
            sum(s for n, s in in_layers.items() if depths[n] == i + 1) for i in range(layers)
        ),
        after=sum(sizes.values()) - by_depth[0] - sum(in_layers.values()),
        matrices=matrices // layers,
        largest=max(sizes.values()),
        span=2 * int(buckets) if getattr(config, "relative_attention", False) else 0,
    )
