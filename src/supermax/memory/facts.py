"""Inputs of the memory estimate: an encoder's sizes and a trial's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

Numbers = Annotated[int, Field(ge=0, lt=1 << 45)]
Size = Annotated[int, Field(ge=1, lt=1 << 30)]
HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes of an encoder. Numbers count elements of parameters, not bytes."""

    name: str
    family: str
    fingerprint: str
    hidden: Size
    inner: Size
    heads: Size
    embeddings: Numbers
    """Elements of the parameters before the first layer."""
    by_layer: Annotated[tuple[Numbers, ...], Field(min_length=1)]
    """Elements of each layer."""
    after: Numbers
    """Elements after the last layer."""
    matrices: Numbers
    """Elements of one layer's matrices, of which autocast keeps bf16 or fp16 copies."""
    largest: Numbers
    """Elements of the largest parameter."""
    span: Numbers = 0
    """Relative positions of the attention (DeBERTa); 0: it has none."""

    @property
    def layers(self) -> int:
        return len(self.by_layer)

    @property
    def parameters(self) -> int:
        return self.embeddings + sum(self.by_layer) + self.after


@dataclass(frozen=True)
class AdaptedLayers:
    """Linear layers of an encoder that an adapter changes, by their numbers of features."""

    count: Numbers
    inputs: Numbers
    """Sum of the input features of the adapted layers."""
    outputs: Numbers
    """Sum of their output features."""
    distinct: Numbers
    """Input features of the adapted layers, those of query, key and value counted once."""
    frozen: Numbers
    """Sum of the input features of the layers that are not adapted."""
    frozen_distinct: Numbers
    """The same, with an input that layers share counted once."""
    attention_outputs: Numbers
    """Input features of the adapted layers whose input is the output of attention."""
    norm_features: Numbers
    """Features of the norms that save their output for the gradient of their weight alone."""

    def parameters(self, rank: int) -> int:
        """Return the elements of the adapter's matrices."""
        return rank * (self.inputs + self.outputs)


@dataclass(frozen=True)
class Spec:
    """Properties of a trial that its memory depends on, apart from the split of its batch."""

    encoders: tuple[EncoderSizes, ...]
    effective_batch: int
    length: int
    """Tokens of the longest sequence in the data."""
    device: str = "cuda"
    precision: str = "bf16"
    optimizer: str = "adamw"
    frozen: int = 0
    """Number of frozen layers; if above 0, the embeddings are frozen too."""
    adapter: int = 0
    """Elements of an adapter's matrices; if above 0, the encoders are frozen; 0: no adapter."""
    adapter_bytes: int = 0
    """Bytes that an adapter's layers save for each token, beyond those of full training; below 0
    where frozen layers save less than the adapter adds."""
    dropout: bool = True
    attention_dropout: bool = True
    head: int = 0
    """Elements of the parameters of pooling, fusion and heads."""
    token_width: int = 0
    """Features that heads and fusion compute for every token."""
    data: int = 0
    """Tokens of the data set, and values of its sets of labels, which are on the device where
    steps are captured as CUDA graphs."""
    captured: bool = False
    """Steps are captured as CUDA graphs, unless activation checkpointing is on. A graph keeps its
    memory pool between replays."""

    @property
    def half(self) -> bool:
        return self.precision in HALF

    @property
    def parameters(self) -> int:
        return sum(encoder.parameters for encoder in self.encoders) + self.head

    @property
    def trained(self) -> int:
        if self.adapter:
            return self.adapter + self.head
        return sum(self.trained_of(encoder) for encoder in self.encoders) + self.head

    @property
    def stored(self) -> int:
        """Elements of the weights in a checkpoint: with an adapter only those that are trained."""
        return self.trained if self.adapter else self.parameters

    def trained_of(self, encoder: EncoderSizes) -> int:
        if not self.frozen:
            return encoder.parameters
        return encoder.parameters - encoder.embeddings - sum(encoder.by_layer[: self.frozen])

    def active(self, encoder: EncoderSizes) -> int:
        """Return the number of layers with a backward pass; 0 if all layers are frozen."""
        return max(0, encoder.layers - self.frozen)

    @property
    def largest(self) -> int:
        """Elements of the largest parameter that is trained; of an adapter, those of a layer."""
        if self.adapter:
            return self.adapter // min(encoder.layers for encoder in self.encoders)
        whole = max(encoder.largest for encoder in self.encoders)
        return max(encoder.matrices for encoder in self.encoders) // 3 if self.frozen else whole
