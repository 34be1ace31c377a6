"""Bytes of the activations that autograd saves for the backward pass: linear in the tokens, and
quadratic in the length where attention scores are materialised.

The coefficients follow from the layers' code (which tensors autograd saves, and in which dtype).
They agree within a percent with the sizes of saved tensors on a CPU and with memory measured on a
GPU (docs/memory.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supermax.memory.facts import AdaptedLayers, EncoderSizes, Spec


@dataclass(frozen=True)
class Layer:
    """Coefficients of the bytes that one layer saves. T: tokens of the micro-batch; L: its length;
    B: its sequences; h: hidden size; i: intermediate size; a: heads; s: relative positions."""

    per_hidden: float
    """× T·h"""
    per_inner: float
    """× T·i"""
    per_head: float = 0
    """× T·a"""
    per_score: float = 0
    """× B·L²·a"""
    per_pair: float = 0
    """× B·L²: the materialised mask."""
    masks_hidden: float = 0
    """× T·h, where there is dropout."""
    masks_inner: float = 0
    """× T·i, where there is dropout."""
    dropped_scores: float = 0
    """× B·L²·a, where there is dropout in attention."""
    dropped_hidden: float = 0
    """× T·h, where there is dropout in attention."""
    unmasked: float = 0
    """× B·L², where there is no dropout in attention."""
    per_position: float = 0
    """× T·a·s"""
    per_repeat: float = 0
    """× B·h·s"""
    positions: float = 0
    """× L²"""
    position_states: float = 0
    """× h·s"""
    qkv_inputs: float = 0
    """× T·h less, where query, key and value are one matrix product and save one input."""


_GPU_BERT = Layer(24, 4, 4, per_pair=2, masks_hidden=2)
_BERT_WITH_QKV = replace(_GPU_BERT, qkv_inputs=4)
_CPU_BERT = Layer(32, 8, 10, unmasked=4, masks_hidden=8, dropped_scores=12)
_GPU: dict[str, Layer] = {
    "bert": _BERT_WITH_QKV,
    "roberta": _BERT_WITH_QKV,
    "xlm-roberta": _BERT_WITH_QKV,
    "electra": _BERT_WITH_QKV,
    "modernbert": Layer(24, 8, 8, per_pair=2, masks_inner=1, dropped_hidden=1),
    "eurobert": Layer(34, 8, 8, per_pair=2),
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
    "eurobert": Layer(40, 16, 2, unmasked=4, dropped_scores=12),
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


def layer_of(encoder: EncoderSizes, spec: Spec) -> Layer:
    """Return the coefficients of an encoder's family; BERT's for an unknown one, which
    measurements then correct."""
    if spec.device == "cpu" or not spec.half:
        return _CPU.get(encoder.family, _CPU_BERT)
    return _GPU.get(encoder.family, _GPU_BERT)


def by_token(layer: Layer, encoder: EncoderSizes, spec: Spec, fused_qkv: bool) -> float:
    """Return the bytes that a layer saves for each token. `fused_qkv`: query, key and value are
    one matrix product where the family separates them."""
    h, i, a = encoder.hidden, encoder.inner, encoder.heads
    saved = layer.per_hidden * h + layer.per_inner * i + layer.per_head * a
    saved -= layer.qkv_inputs * h if fused_qkv else 0
    saved += layer.per_position * a * encoder.span
    if spec.dropout:
        saved += layer.masks_hidden * h + layer.masks_inner * i
    if spec.attention_dropout:
        saved += layer.dropped_hidden * h
    return saved


def adapter_by_token(layers: AdaptedLayers, rank: int, dropout: bool, half: bool) -> int:
    """Return the bytes that an adapter's layers save for each token, beyond those of full
    training.

    A frozen linear layer does not save its input; the first matrix of an adapter saves it instead,
    the second one saves the output of the first. With dropout each layer saves a mask, and an
    input of its own: in half precision most layers have one anyway, cast from fp32, but the
    output of attention, which is not cast, is saved by attention too. The weights of norms are
    frozen.
    """
    width = 2 if half else 4
    frozen = layers.frozen if half else layers.frozen_distinct
    saved = width * (rank * layers.count - frozen) - 4 * layers.norm_features
    if dropout and half:
        saved += layers.inputs + width * layers.attention_outputs
    elif dropout:
        saved += width * (2 * layers.inputs - layers.distinct)
    return saved


def attention(layer: Layer, encoder: EncoderSizes, spec: Spec, batch: int, length: int) -> float:
    """Return the bytes that grow with the square of the length, and those of relative
    positions."""
    a, square = encoder.heads, batch * length * length
    if spec.attention_dropout:
        saved = square * ((layer.per_score + layer.dropped_scores) * a + layer.per_pair)
    else:
        saved = square * (layer.per_score * a + layer.per_pair + layer.unmasked)
    saved += layer.positions * length * length if encoder.span else 0
    states = batch * layer.per_repeat + layer.position_states
    return saved + states * encoder.hidden * encoder.span


def base(encoder: EncoderSizes, spec: Spec) -> float:
    """Return the bytes that the embeddings save for each token; 0 where they are frozen."""
    if spec.frozen or spec.adapter:
        return 0.0
    on_gpu = spec.device != "cpu" and spec.half
    mask = (1 if on_gpu else 4) if spec.dropout else 0
    return (4.4 + mask) * encoder.hidden + 100


def transient(encoder: EncoderSizes, spec: Spec, batch: int, checkpointing: bool) -> float:
    """Return the bytes of temporary tensors of one layer in the backward pass."""
    length = spec.length
    scale = 1 if spec.half else 2  # fp32 elements are twice as large
    tokens, square = batch * length, batch * length * length
    linear = scale * tokens * (8 * encoder.hidden + 4 * encoder.inner)
    if encoder.span:
        positions = (3 if checkpointing else 9) * tokens * encoder.span
        return linear + scale * encoder.heads * (5 * square + positions)
    if not spec.half and spec.attention_dropout:
        return linear + 12 * encoder.heads * square
    return linear


def evaluation(encoder: EncoderSizes, spec: Spec, tokens: int, length: int) -> float:
    """Return the bytes of a forward pass that saves nothing: evaluation."""
    scale = 1 if spec.half else 2  # fp32 elements are twice as large
    linear = scale * tokens * (30 * encoder.hidden + 5 * encoder.inner)
    if encoder.span:
        linear += scale * encoder.heads * tokens * (10 * length + 9 * encoder.span)
    elif not spec.half:
        linear += 8 * encoder.heads * tokens * length
    return linear
