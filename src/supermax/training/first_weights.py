"""An encoder's first weights, kept by a process that trains one trial after the other.

    Source, configuration ──encoder()──▶ encoder on the device
            └─ the first time loaded or drawn, then copied

A copy is what a new start would give, to the bit, and so are the random numbers that come after.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from supermax.training.encoders import DROPOUTS, finished, load, untrained
from supermax.training.sources import Source, weights_mark


@dataclass(frozen=True)
class _Kept:
    key: str
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random: Tensor
    """Of torch's generator, after the encoder was made."""


class FirstWeights:
    """Of the encoder that was asked for last: trials of one encoder often follow each other, and
    a process that kept all of them would be too large."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        kept = self._kept
        parts = [] if kept is None else [*kept.parameters.values(), *kept.buffers.values()]
        return sum(part.numel() * part.element_size() for part in parts)

    def encoder(self, source: Source, config: PretrainedConfig, device: str) -> nn.Module:
        key = _key(source, config)
        if self._kept is not None and self._kept.key == key:
            copy = _copy(self._kept, config, device)
            if copy is not None:
                return copy
        self._kept = None  # before another takes its place
        model = load(source, config)
        pinned = device.startswith("cuda")
        self._kept = _Kept(
            key,
            {name: _aside(p, pinned) for name, p in model.named_parameters()},
            {name: _aside(b, pinned) for name, b in model.named_buffers()},
            torch.get_rng_state(),
        )
        return model.to(device)


def _key(source: Source, config: PretrainedConfig) -> str:
    """All that the first weights depend on; dropout is not part of that."""
    facts = {k: v for k, v in config.to_dict().items() if k not in DROPOUTS}
    drawn = "" if source.trained else torch.get_rng_state().numpy().tobytes().hex()
    words = json.dumps([facts, weights_mark(source), drawn], sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()


def _aside(tensor: Tensor, pinned: bool) -> Tensor:
    copy = tensor.detach().to("cpu", copy=True)
    return copy.pin_memory() if pinned else copy


def _copy(kept: _Kept, config: PretrainedConfig, device: str) -> nn.Module | None:
    """None where the encoder holds more than its parameters and buffers."""
    with torch.device("meta"):
        model = finished(untrained(config))
    names = {name for name, _ in model.named_parameters()}
    if names != kept.parameters.keys() or _hidden_tensors(model):
        return None
    for name, weight in kept.parameters.items():
        owner, last = _place(model, name)
        there: Any = owner._parameters[last]
        weight = weight.to(device, non_blocking=True, copy=True)
        owner._parameters[last] = nn.Parameter(weight, requires_grad=there.requires_grad)
    for name, buffer in kept.buffers.items():
        owner, last = _place(model, name)
        owner._buffers[last] = buffer.to(device, non_blocking=True, copy=True)
    torch.set_rng_state(kept.random)
    return model


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last


def _hidden_tensors(model: nn.Module) -> bool:
    return any(isinstance(v, Tensor) for m in model.modules() for v in vars(m).values())
