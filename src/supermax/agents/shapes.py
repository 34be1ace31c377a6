"""An encoder's sizes, and whether agents can use it, from its configuration alone.

Source ──encoder_of()──▶ memory.facts.Encoder;  Source ──why_unusable()──▶ a reason, or None
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import nn

from supermax.files import make_private, write_whole
from supermax.memory.facts import Encoder
from supermax.memory.learning import default_folder
from supermax.training.causality import is_causal
from supermax.training.encoders import depth_of, layer_list, outline
from supermax.training.sources import Source

_INNER = ("intermediate_size", "hidden_dim")
_ENCODER = TypeAdapter(Encoder)
_BOOL = TypeAdapter(bool)
_USABLE = ("bert-base-uncased", "roberta-base", "microsoft/deberta-v3-base")
_known: dict[str, Encoder] = {}
_causal: dict[str, bool] = {}


def encoder_of(source: Source) -> Encoder:
    """The encoder as memory sees it. The first time ever takes as long as importing its code; then
    it is kept for the user."""
    mark = source.fingerprint
    if mark not in _known:
        if (kept := _kept(mark)) is None:
            kept = _measured(source, outline(source))
            _write(_file(mark), asdict(kept))
        _known[mark] = kept
    return _known[mark]


def why_unusable(source: Source) -> str | None:
    """Return the reason why no agent can use an encoder. The first time takes as long as
    importing its code; then the answer is kept for the user."""
    if not _is_causal(source):
        return None
    return (
        f"The encoder '{source.name}' cannot be used: it is a decoder with causal attention "
        f"({source.config.model_type}), each of whose tokens sees only those before it, and "
        f"agents need tokens that see the whole text. Use an encoder instead, for example "
        f"{', '.join(_USABLE)}."
    )


def _is_causal(source: Source) -> bool:
    mark = source.fingerprint
    file = default_folder() / f"causal-{mark}-{version('transformers')}.json"
    if mark not in _causal:
        try:
            _causal[mark] = _BOOL.validate_json(file.read_bytes(), strict=True)
        except (OSError, ValidationError):
            _causal[mark] = is_causal(source.config)
            _write(file, _causal[mark])
    return _causal[mark]


def _file(mark: str) -> Path:
    return default_folder() / f"encoder-{mark}-{version('transformers')}.json"


def _kept(mark: str) -> Encoder | None:
    try:
        found = _ENCODER.validate_json(_file(mark).read_bytes(), strict=True)
    except (OSError, ValidationError):
        return None
    return found if found.fingerprint == mark else None


def _write(file: Path, facts: Any) -> None:
    with contextlib.suppress(OSError):  # it is only quicker
        make_private(file.parent)
        write_whole(file, json.dumps(facts))


def _measured(source: Source, model: nn.Module) -> Encoder:
    config, depths = source.config, depth_of(model)
    layers = len(layer_list(model)[1])
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    by_depth = [0] * (layers + 1)
    for name, size in sizes.items():
        by_depth[depths[name]] += size
    stack = layer_list(model)[0]
    in_layers = {name: size for name, size in sizes.items() if name.startswith(f"{stack}.")}
    matrices = sum(s for n, s in in_layers.items() if model.get_parameter(n).ndim > 1)
    buckets = getattr(config, "position_buckets", 0) or 0
    return Encoder(
        name=source.name,
        family=str(config.model_type),
        fingerprint=source.fingerprint,
        hidden=int(config.hidden_size),
        inner=int(next(getattr(config, key) for key in _INNER if hasattr(config, key))),
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
