"""What an encoder keeps for its backward pass, in bytes: linear in the tokens, and quadratic in
the length where attention is written out.

The coefficients follow from the layers' code (which tensors autograd saves, and in which type);
they were held against the sizes of saved tensors on a CPU and against memory measured on a GPU,
which they meet within a percent (docs/memory.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from supermax.memory.facts import Encoder, Spec


@dataclass(frozen=True)
class Layer:
    """Bytes that one layer keeps. T: tokens of the micro-batch; L: its length; B: its sequences;
    h: hidden size; i: inner size; a: heads; s: relative positions."""

    per_hidden: float
    """× T·h"""
    per_inner: float
    """× T·i"""
    per_head: float = 0
    """× T·a"""
    per_score: float = 0
    """× B·L²·a"""
    per_pair: float = 0
    """× B·L²: the mask, written out."""
    masks_hidden: float = 0
    """× T·h, where there is dropout."""
    masks_inner: float = 0
    """× T·i, where there is dropout."""
    dropped_scores: float = 0
    """× B·L²·a, where there is dropout in attention."""
    dropped_hidden: float = 0
    """× T·h, where there is dropout in attention."""
    unmasked: float = 0
    """× B·L², which are not kept where there is dropout in attention."""
    per_position: float = 0
    """× T·a·s"""
    per_repeat: float = 0
    """× B·h·s"""
    positions: float = 0
    """× L²"""
    position_states: float = 0
    """× h·s"""


_GPU_BERT = Layer(24, 4, 4, per_pair=2, masks_hidden=2)
_CPU_BERT = Layer(32, 8, 10, unmasked=4, masks_hidden=8, dropped_scores=12)
_GPU: dict[str, Layer] = {
    "modernbert": Layer(24, 8, 8, per_pair=2, masks_inner=1, dropped_hidden=1),
    "deberta-v2": Layer(
        24.5,
        4,
        per_score=6,
        per_pair=1,
        masks_hidden=2,
        dropped_scores=1,
        per_position=4,
        per_repeat=4,
        positions=16,
        position_states=5,
    ),
}
_CPU: dict[str, Layer] = {
    "distilbert": Layer(32, 8, 12, unmasked=4, masks_hidden=4, dropped_scores=12),
    "modernbert": Layer(
        40.4, 16, 1, unmasked=4, masks_inner=4, dropped_scores=12, dropped_hidden=-4.4
    ),
    "deberta-v2": Layer(
        35.2,
        8,
        5,
        per_score=4,
        per_pair=1.1,
        masks_hidden=8.5,
        dropped_scores=8,
        per_position=8,
        per_repeat=8.4,
        positions=16.3,
        position_states=7.8,
    ),
}


def layer_of(encoder: Encoder, spec: Spec) -> Layer:
    """Families that are not known are taken for BERT, until something was measured."""
    if spec.device == "cpu" or not spec.half:
        return _CPU.get(encoder.family, _CPU_BERT)
    return _GPU.get(encoder.family, _GPU_BERT)


def by_token(layer: Layer, encoder: Encoder, spec: Spec) -> float:
    """Bytes a token."""
    h, i, a = encoder.hidden, encoder.inner, encoder.heads
    kept = layer.per_hidden * h + layer.per_inner * i + layer.per_head * a
    kept += layer.per_position * a * encoder.span
    if spec.dropout:
        kept += layer.masks_hidden * h + layer.masks_inner * i
    if spec.attention_dropout:
        kept += layer.dropped_hidden * h
    return kept


def attention(layer: Layer, encoder: Encoder, spec: Spec, batch: int, length: int) -> float:
    """Bytes that grow with the square of the length, and what relative positions add."""
    a, square = encoder.heads, batch * length * length
    if spec.attention_dropout:
        kept = square * ((layer.per_score + layer.dropped_scores) * a + layer.per_pair)
    else:
        kept = square * (layer.per_score * a + layer.per_pair + layer.unmasked)
    kept += layer.positions * length * length if encoder.span else 0
    states = batch * layer.per_repeat + layer.position_states
    return kept + states * encoder.hidden * encoder.span


def base(encoder: Encoder, spec: Spec) -> float:
    """Bytes a token of the embeddings; nothing where they are frozen."""
    if spec.frozen:
        return 0.0
    on_gpu = spec.device != "cpu" and spec.half
    mask = (1 if on_gpu else 4) if spec.dropout else 0
    return (4.4 + mask) * encoder.hidden + 100


def fleeting(encoder: Encoder, spec: Spec, batch: int, checkpointing: bool) -> float:
    """Bytes that one layer takes on top for a moment, in the backward pass."""
    length = spec.length
    width = 1 if spec.half else 2
    tokens, square = batch * length, batch * length * length
    linear = width * tokens * (8 * encoder.hidden + 4 * encoder.inner)
    if encoder.span:
        positions = (3 if checkpointing else 9) * tokens * encoder.span
        return linear + width * encoder.heads * (5 * square + positions)
    if not spec.half and spec.attention_dropout:
        return linear + 12 * encoder.heads * square
    return linear


def looking(encoder: Encoder, spec: Spec, tokens: int, length: int) -> float:
    """Bytes that a forward pass takes which keeps nothing: evaluation."""
    width = 1 if spec.half else 2
    linear = width * tokens * (30 * encoder.hidden + 5 * encoder.inner)
    if encoder.span:
        linear += width * encoder.heads * tokens * (10 * length + 9 * encoder.span)
    elif not spec.half:
        linear += 8 * encoder.heads * tokens * length
    return linear
