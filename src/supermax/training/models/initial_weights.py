"""Cache of encoders' initial weights, for a process that runs one trial after the other.

    Source, configuration ──encoder()──▶ encoder on the device
            └─ loaded or initialised the first time, then copied

A copy is bitwise equal to a newly built encoder, and leaves the same state of the random number
generator. Pretrained weights do not depend on that state and do not advance it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from supermax.training.models.encoders import DROPOUTS, finish_loading, load_encoder, untrained
from supermax.training.models.sources import Source, weights_mark

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class _Cached:
    """Initial weights of one encoder in CPU memory."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random: Tensor | None
    """RNG state after initialisation; None for pretrained weights."""

    @property
    def size(self) -> int:
        """Bytes, rounded up to a power of two as torch does for pinned memory."""
        parts = [*self.parameters.values(), *self.buffers.values()]
        size = sum(part.numel() * part.element_size() for part in parts)
        return 1 << (size - 1).bit_length()


class InitialWeights:
    """Initial weights of the encoders of the last trial: consecutive trials often use the same,
    and a process that kept all would be too large."""

    def __init__(self) -> None:
        self._cached: dict[str, _Cached] = {}
        """By `_key`, the most recently used last."""

    @property
    def size(self) -> int:
        """Bytes of CPU memory that the cache takes."""
        return sum(cached.size for cached in self._cached.values())

    def encoder(
        self, source: Source, config: PretrainedConfig, device: str, of: int = 1
    ) -> PreTrainedModel:
        """Return an encoder with its initial weights; keep at most `of` encoders, as many as the
        trial has."""
        key = _key(source, config)
        if key in self._cached:
            self._cached[key] = self._cached.pop(key)  # most recently used
        while len(self._cached) > of - (key not in self._cached):
            del self._cached[next(iter(self._cached))]
        if key in self._cached:
            copy = _copy(self._cached[key], config, device)
            if copy is not None:
                return copy
            del self._cached[key]
        model = load_encoder(source, config)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        copies = iter(
            _cpu_copies([*parameters.values(), *buffers.values()], device.startswith("cuda"))
        )
        self._cached[key] = _Cached(
            dict(zip(parameters, copies, strict=False)),
            dict(zip(buffers, copies, strict=False)),
            None if source.trained else torch.get_rng_state(),
        )
        return model.to(device)


def _key(source: Source, config: PretrainedConfig) -> str:
    """Return a hash of all that the initial weights depend on, which dropout does not."""
    facts = {k: v for k, v in config.to_dict().items() if k not in DROPOUTS}
    drawn = "" if source.trained else torch.get_rng_state().numpy().tobytes().hex()
    text = json.dumps([facts, weights_mark(source), drawn], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _cpu_copies(tensors: list[Tensor], pinned: bool) -> list[Tensor]:
    """Return copies in one CPU allocation: torch rounds each pinned one up to a power of two."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    ends = list(accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes))
    whole = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=pinned)
    copies = []
    for tensor, size, end in zip(tensors, sizes, ends, strict=True):
        begin = end - -(-size // _ALIGNED) * _ALIGNED
        copy = whole[begin : begin + size].view(tensor.dtype).view(tensor.shape)
        copies.append(copy.copy_(tensor.detach()))
    return copies


def _copy(cached: _Cached, config: PretrainedConfig, device: str) -> PreTrainedModel | None:
    """Return a new encoder with the cached weights; None where it has tensors that are neither
    parameters nor buffers, which the cache does not hold."""
    with torch.device("meta"):
        model = finish_loading(untrained(config))
    names = {name for name, _ in model.named_parameters()}
    if names != cached.parameters.keys() or _hidden_tensors(model):
        return None
    for name, tensor in (cached.parameters | cached.buffers).items():
        path, _, attribute = name.rpartition(".")
        copy = tensor.to(device, non_blocking=True, copy=True)
        if name in names:
            copy = nn.Parameter(copy, model.get_parameter(name).requires_grad)
        setattr(model.get_submodule(path), attribute, copy)
    if cached.random is not None:
        torch.set_rng_state(cached.random)
    return model


def _hidden_tensors(model: nn.Module) -> bool:
    return any(isinstance(v, Tensor) for m in model.modules() for v in vars(m).values())
