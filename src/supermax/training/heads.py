"""Pooling, heads and fusion: the project's own, the same for every encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from supermax.training.config import FusionConfig, HeadConfig

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
}


class Pooling(nn.Module):
    """One vector for a sequence of token vectors; padding never counts."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.score = nn.Linear(size, 1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "cls":
            return states[:, 0]
        wide = mask.unsqueeze(-1).bool()
        if self.kind == "max":
            return states.masked_fill(~wide, torch.finfo(states.dtype).min).amax(dim=1)
        if self.kind == "mean":
            return (states * wide).sum(dim=1) / wide.sum(dim=1).clamp(min=1)
        scores = self.score(states)  # in half precision, under autocast
        scores = scores.masked_fill(~wide, torch.finfo(scores.dtype).min)
        weighted: Tensor = scores.softmax(dim=1) * states * wide
        return weighted.sum(dim=1)


def head(config: HeadConfig, size: int, outputs: int) -> nn.Sequential:
    """depth - 1 hidden layers of the given width, then one linear map."""
    layers: list[nn.Module] = []
    for _ in range(config.depth - 1):
        layers += [nn.Dropout(config.dropout), nn.Linear(size, config.width)]
        layers.append(_ACTIVATIONS[config.activation]())
        size = config.width
    return nn.Sequential(*layers, nn.Dropout(config.dropout), nn.Linear(size, outputs))


class Fusion(nn.Module):
    """Vectors of one encoder enriched by another's: queries [B, N, q] and states [B, L, s] of the
    other, of which `pooled` [B, s] is the summary, give [B, N, width]."""

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
