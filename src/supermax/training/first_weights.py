"""Encoders' first weights, kept by a process that trains one trial after the other.

    Source, configuration ──encoder()──▶ encoder on the device
            └─ the first time loaded or drawn, then copied

A copy is what a new start would give, to the bit, and so are the random numbers that come after.
Weights that were trained before are the same whatever was drawn, and draw nothing themselves.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from supermax.training.encoders import DROPOUTS, finished, load, untrained
from supermax.training.sources import Source, weights_mark

_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class _Kept:
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random: Tensor | None
    """Of torch's generator, after the encoder was drawn; None for one that was loaded."""

    @property
    def size(self) -> int:
        """Bytes, as torch hands out pinned memory."""
        parts = [*self.parameters.values(), *self.buffers.values()]
        size = sum(part.numel() * part.element_size() for part in parts)
        return 1 << (size - 1).bit_length()


class FirstWeights:
    """Of the encoders that a trial asked for last: trials of the same often follow each other, and
    a process that kept all of them would be too large."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        """By all that they depend on; the one that was asked for last is the last."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(kept.size for kept in self._kept.values())

    def encoder(
        self, source: Source, config: PretrainedConfig, device: str, of: int = 1
    ) -> nn.Module:
        """For a trial that has so many."""
        key = _key(source, config)
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)  # asked for last
        while len(self._kept) > of - (key not in self._kept):
            del self._kept[next(iter(self._kept))]
        if key in self._kept:
            copy = _copy(self._kept[key], config, device)
            if copy is not None:
                return copy
            del self._kept[key]
        model = load(source, config)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        every = iter(_aside([*parameters.values(), *buffers.values()], device.startswith("cuda")))
        self._kept[key] = _Kept(
            dict(zip(parameters, every, strict=False)),
            dict(zip(buffers, every, strict=False)),
            None if source.trained else torch.get_rng_state(),
        )
        return model.to(device)


def _key(source: Source, config: PretrainedConfig) -> str:
    """All that the first weights depend on; dropout is not part of that."""
    facts = {k: v for k, v in config.to_dict().items() if k not in DROPOUTS}
    drawn = "" if source.trained else torch.get_rng_state().numpy().tobytes().hex()
    words = json.dumps([facts, weights_mark(source), drawn], sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()


def _aside(tensors: list[Tensor], pinned: bool) -> list[Tensor]:
    """Copies in one piece of memory: pinned, each would take the next power of two."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    ends = list(accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes))
    whole = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=pinned)
    copies = []
    for tensor, size, end in zip(tensors, sizes, ends, strict=True):
        begin = end - -(-size // _ALIGNED) * _ALIGNED
        copy = whole[begin : begin + size].view(tensor.dtype).view(tensor.shape)
        copies.append(copy.copy_(tensor.detach()))
    return copies


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
    if kept.random is not None:
        torch.set_rng_state(kept.random)
    return model


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last


def _hidden_tensors(model: nn.Module) -> bool:
    return any(isinstance(v, Tensor) for m in model.modules() for v in vars(m).values())
