"""Losses per example, so that micro-batches add up to the loss of the effective batch.

    class_loss, number_loss, label_loss, span_loss ──▶ one term per example
    class_denominator, span_denominator ──▶ divisor of the sum of all terms

The caller computes the denominator once, for the whole effective batch, and divides the sum of
every micro-batch's terms by it: gradients are then the full batch's, whatever the split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from supermax.training.config import LossConfig

IGNORED = -100
"""Label or position of an example without a target for this loss (torch's ignore_index)."""
MIN_DENOMINATOR = 1e-6
"""Divisor of a batch with nothing labelled, whose loss is 0; no overflow in fp16."""


def class_weights(counts: Sequence[int], config: LossConfig) -> Tensor | None:
    """Return a weight per class from its frequency in training, 1 on average over the examples.

    A class that never occurs is weighted as if it had occurred once. None: equal weights.
    """
    if config.balance == "none":
        return None
    beta = config.balance_beta

    def raw(count: int) -> float:
        if config.balance == "weighted":
            return 1 / count
        # (1 - beta) / (1 - beta^n), Cui et al. 2019; expm1 keeps it exact for beta close to 1.
        return (1 - beta) / -math.expm1(count * math.log(beta))

    weights = [raw(max(count, 1)) for count in counts]
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    mean = total / sum(counts) if sum(counts) else 1.0
    return torch.tensor([weight / mean for weight in weights], dtype=torch.float32)


def class_loss(
    logits: Tensor, labels: Tensor, config: LossConfig, weights: Tensor | None = None
) -> Tensor:
    """Return the loss of every example [B], times its class's weight; 0 where it is IGNORED."""
    terms = _terms(_full_precision(logits).log_softmax(-1), labels, None, config)
    return terms if weights is None else terms * _weight_of(labels, weights).to(terms.dtype)


def class_denominator(labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sum of the weights of labelled examples, at least MIN_DENOMINATOR; their number
    for examples with a number or a set of labels."""
    known = _is_known(labels)
    if weights is None or labels.is_floating_point():
        return known.sum().to(torch.float32).clamp_min(MIN_DENOMINATOR)
    return (_weight_of(labels, weights) * known).sum().clamp_min(MIN_DENOMINATOR)


def number_loss(outputs: Tensor, targets: Tensor, config: LossConfig) -> Tensor:
    """Return the loss of every example [B] from outputs [B, 1]; 0 where the target is NaN.

    Both are standardised, and so is the unit of `delta`.
    """
    known = _is_known(targets)
    # Not where() of the loss: the gradient of a loss of NaN is NaN, also where it is not chosen.
    outputs = _full_precision(outputs).squeeze(-1)
    targets = torch.where(known, targets.to(outputs.dtype), outputs.detach())
    if config.name == "huber":
        return functional.huber_loss(outputs, targets, reduction="none", delta=config.delta)
    if config.name == "mae":
        return functional.l1_loss(outputs, targets, reduction="none")
    return functional.mse_loss(outputs, targets, reduction="none")


def positive_weights(positives: Sequence[int], count: int, config: LossConfig) -> Tensor | None:
    """Return the weight of a label's positive examples over its negative ones, for each label;
    None: equal weights.

    It is the ratio of the weights that `class_weights` gives to two classes. A label that always
    or never occurs has the weight 1.
    """
    if config.balance == "none":
        return None
    ratios = []
    for own in positives:
        pair = class_weights([count - own, own], config) if 0 < own < count else None
        ratios.append(1.0 if pair is None else float(pair[1] / pair[0]))
    return torch.tensor(ratios, dtype=torch.float32)


def label_loss(
    logits: Tensor, targets: Tensor, config: LossConfig, weights: Tensor | None = None
) -> Tensor:
    """Return the loss of every example [B] from logits and targets of 0 and 1 [B, L]: the mean of
    the binary cross-entropy over the labels; 0 where the targets are NaN.

    `weights` multiply the terms of positive examples of each label [L].
    """
    logits, known = _full_precision(logits), ~targets.isnan()
    truth = torch.where(known, targets, 0).to(logits.dtype)
    terms = functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    if config.name == "focal":
        # -log p is exact where 1 - p is not; at p = 1 a power below 1 has an infinite slope.
        missed = (-torch.expm1(-terms)).clamp_min(torch.finfo(terms.dtype).tiny)
        terms = missed**config.gamma * terms
    if weights is not None:
        terms = terms * torch.where(truth > 0, weights.to(terms), 1)
    return torch.where(known, terms, 0).mean(-1)


def _is_known(targets: Tensor) -> Tensor:
    if not targets.is_floating_point():
        return targets != IGNORED
    known = ~targets.isnan()
    return known if known.ndim == 1 else known.all(-1)


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    starts: Tensor,
    ends: Tensor,
    mask: Tensor,
    config: LossConfig,
) -> Tensor:
    """Return the mean of the losses of start and end, per example [B].

    Only positions that the mask allows have probability. IGNORED positions add 0. A target that
    the mask forbids gives an extremely large loss: the mask is then wrong.
    """
    allowed = mask.bool()
    start_terms, end_terms = (
        _terms(_masked_log_softmax(logits, allowed), targets, allowed, config)
        for logits, targets in ((start_logits, starts), (end_logits, ends))
    )
    return (start_terms + end_terms) / 2


def span_denominator(starts: Tensor) -> Tensor:
    """Return the number of examples with a target, at least MIN_DENOMINATOR."""
    return (starts != IGNORED).sum().to(torch.float32).clamp_min(MIN_DENOMINATOR)


def _full_precision(logits: Tensor) -> Tensor:
    """Return logits in fp32: bf16 and fp16 are too coarse for losses. float64, which gradient
    checks use, stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _masked_log_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    logits = _full_precision(logits)
    # The lowest finite number, not -inf: a row without any allowed position must not become NaN.
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min).log_softmax(-1)


def _weight_of(labels: Tensor, weights: Tensor) -> Tensor:
    return weights.to(labels.device)[labels.clamp_min(0)]


def _terms(log_p: Tensor, targets: Tensor, allowed: Tensor | None, config: LossConfig) -> Tensor:
    hit = log_p.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    if config.name == "label_smoothing":
        smooth = _mean(log_p, allowed)
        terms = -(1 - config.smoothing) * hit - config.smoothing * smooth
    elif config.name == "focal":
        # At p = 1 a power below 1 has an infinite slope: keep 1 - p above 0.
        missed = (-torch.expm1(hit)).clamp_min(torch.finfo(hit.dtype).tiny)
        terms = -(missed**config.gamma) * hit
    else:
        terms = -hit
    return torch.where(targets != IGNORED, terms, torch.zeros_like(terms))


def _mean(log_p: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return log_p.mean(-1)
    return log_p.masked_fill(~allowed, 0).sum(-1) / allowed.sum(-1).clamp_min(1)
