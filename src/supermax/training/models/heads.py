"""Pooling, heads and fusion, the same for every encoder."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from supermax.training.config import FusionConfig, HeadConfig
from supermax.training.models.sources import has_own_code

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
}


class Pooling(nn.Module):
    """Pooling of token states [B, L, s] to one vector per sequence [B, s], without padding."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.score = nn.Linear(size, 1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "cls":
            return states[:, 0]
        if self.kind == "last":
            last = mask.sum(dim=1).sub(1).clamp(min=0)  # padding is on the right
            return states.gather(1, last.view(-1, 1, 1).expand(-1, 1, states.shape[-1])).squeeze(1)
        real = mask.unsqueeze(-1).bool()
        if self.kind == "max":
            return states.masked_fill(~real, torch.finfo(states.dtype).min).amax(dim=1)
        if self.kind == "mean":
            return (states * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        scores = self.score(states)  # bf16 or fp16 under autocast
        scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
        weighted: Tensor = scores.softmax(dim=1) * states * real
        return weighted.sum(dim=1)


def head(config: HeadConfig, size: int, outputs: int) -> nn.Sequential:
    """Return an MLP head: depth - 1 hidden layers of the given width, then a linear layer."""
    layers: list[nn.Module] = []
    for _ in range(config.depth - 1):
        layers += [nn.Dropout(config.dropout), nn.Linear(size, config.width)]
        layers.append(_ACTIVATIONS[config.activation]())
        size = config.width
    return nn.Sequential(*layers, nn.Dropout(config.dropout), nn.Linear(size, outputs))


def token_head(config: HeadConfig, encoder: PretrainedConfig, outputs: int) -> nn.Sequential:
    """Return the head of transformers for the classes of tokens: dropout and a linear layer, and
    for ModernBERT of transformers its prediction head before them."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if encoder.model_type == "modernbert" and not has_own_code(encoder):
        from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead

        layers["prediction"] = ModernBertPredictionHead(encoder)
    layers["dropout"] = nn.Dropout(config.dropout)
    layers["classifier"] = nn.Linear(encoder.hidden_size, outputs)
    return nn.Sequential(layers)


class Fusion(nn.Module):
    """Fusion of two encoders: queries [B, N, q] of one, and states [B, L, s] of the other with
    their pooled vector [B, s], give [B, N, width]."""

    def __init__(self, config: FusionConfig, queries: int, states: int) -> None:
        super().__init__()
        self.kind = config.name
        self.of_query = nn.Linear(queries, config.width)
        self.of_state = nn.Linear(states, config.width)
        if self.kind == "concat":
            self.mix = nn.Linear(2 * config.width, config.width)
        elif self.kind == "gated":
            self.gate = nn.Linear(2 * config.width, config.width)

    def forward(self, queries: Tensor, states: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        query = self.of_query(queries)
        if self.kind == "attention":
            keys = self.of_state(states)
            scores = query @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
            scores = scores.masked_fill(~mask.bool().unsqueeze(1), torch.finfo(scores.dtype).min)
            return query + scores.softmax(dim=-1) @ keys  # type: ignore[no-any-return]
        other = self.of_state(pooled).unsqueeze(1).expand_as(query)
        both = torch.cat([query, other], dim=-1)
        if self.kind == "concat":
            return nn.functional.gelu(self.mix(both))
        gate = self.gate(both).sigmoid()
        return gate * query + (1 - gate) * other  # type: ignore[no-any-return]
