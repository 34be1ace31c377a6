"""What decides how much memory a trial takes: an encoder's sizes, a trial's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

Numbers = Annotated[int, Field(ge=0, lt=1 << 45)]
Size = Annotated[int, Field(ge=1, lt=1 << 30)]
HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class Encoder:
    """An encoder by its sizes. Numbers are parameters, not bytes."""

    name: str
    family: str
    fingerprint: str
    hidden: Size
    inner: Size
    heads: Size
    embeddings: Numbers
    """Numbers before the first layer."""
    by_layer: Annotated[tuple[Numbers, ...], Field(min_length=1)]
    """Numbers of each layer."""
    after: Numbers
    """Numbers after the last layer."""
    matrices: Numbers
    """Numbers of one layer's matrices, of which half precision keeps copies."""
    largest: Numbers
    """Numbers of the largest parameter."""
    span: Numbers = 0
    """Relative positions that attention looks at, where it does."""

    @property
    def layers(self) -> int:
        return len(self.by_layer)

    @property
    def numbers(self) -> int:
        return self.embeddings + sum(self.by_layer) + self.after


@dataclass(frozen=True)
class Spec:
    """A trial, as far as memory is concerned. How it is split is not part of it."""

    encoders: tuple[Encoder, ...]
    effective_batch: int
    length: int
    """Tokens of the longest sequence that occurs."""
    device: str = "cuda"
    precision: str = "bf16"
    optimizer: str = "adamw"
    frozen: int = 0
    """Layers that are not trained; with any, the embeddings are not either."""
    dropout: bool = True
    attention_dropout: bool = True
    head: int = 0
    """Numbers of pooling, fusion and heads."""
    token_width: int = 0
    """Width of what heads and fusion compute for every single token."""
    data: int = 0
    """Tokens of all texts, which lie on the device where steps are recorded."""
    captured: bool = False
    """Steps are recorded, unless activations are computed again. What a recording works in stays
    its own between two steps."""

    @property
    def half(self) -> bool:
        return self.precision in HALF

    @property
    def numbers(self) -> int:
        return sum(encoder.numbers for encoder in self.encoders) + self.head

    @property
    def trained(self) -> int:
        return sum(self.trained_of(encoder) for encoder in self.encoders) + self.head

    def trained_of(self, encoder: Encoder) -> int:
        if not self.frozen:
            return encoder.numbers
        return encoder.numbers - encoder.embeddings - sum(encoder.by_layer[: self.frozen])

    def active(self, encoder: Encoder) -> int:
        """Layers that gradients go through: none, where more are frozen than it has."""
        return max(0, encoder.layers - self.frozen)

    @property
    def largest(self) -> int:
        """Numbers of the largest parameter that is trained."""
        whole = max(encoder.largest for encoder in self.encoders)
        return max(encoder.matrices for encoder in self.encoders) // 3 if self.frozen else whole
