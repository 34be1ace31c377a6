"""Losses as terms of single examples, so that any split of a batch adds up to the whole.

    class_loss, span_loss ──▶ one term per example
    class_normaliser, span_normaliser ──▶ what the sum of all terms is divided by

The caller computes the normaliser once, for the whole effective batch, and divides the sum of
every micro-batch's terms by it: gradients are then the full batch's, whatever the split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from supermax.training.config import LossConfig

IGNORED = -100
"""The label, or position, of an example that this loss has nothing to say about."""
LEAST = 1e-6  # a batch with nothing labelled is divided by this: 0, and no overflow in fp16


def class_weights(counts: Sequence[int], config: LossConfig) -> Tensor | None:
    """A weight per class from how often it occurs in training, 1 on average over the examples.

    A class that never occurs is weighted as if it had occurred once. None: all count the same.
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
    """The loss of every example [B], times its class's weight; 0 where the label is -100."""
    terms = _terms(_wide(logits).log_softmax(-1), labels, None, config)
    return terms if weights is None else terms * _weight_of(labels, weights).to(terms.dtype)


def class_normaliser(labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sum of the weights of the labelled examples; a little above 0 when there are none."""
    known = labels != IGNORED
    if weights is None:
        return known.sum().to(torch.float32).clamp_min(LEAST)
    return (_weight_of(labels, weights) * known).sum().clamp_min(LEAST)


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    starts: Tensor,
    ends: Tensor,
    mask: Tensor,
    config: LossConfig,
) -> Tensor:
    """The mean of the losses of the start and of the end, per example [B].

    Only positions that the mask allows get probability. A position of -100 adds 0. A target that
    the mask forbids gives a loss beyond all bounds: that is a mistake of whoever made the mask.
    """
    allowed = mask.bool()
    halves = [
        _terms(_masked_log_softmax(logits, allowed), targets, allowed, config)
        for logits, targets in ((start_logits, starts), (end_logits, ends))
    ]
    return (halves[0] + halves[1]) / 2


def span_normaliser(starts: Tensor, ends: Tensor) -> Tensor:
    """How many examples have a target; a little above 0 when there are none."""
    known = (starts != IGNORED) | (ends != IGNORED)
    return known.sum().to(torch.float32).clamp_min(LEAST)


def _wide(logits: Tensor) -> Tensor:
    """Losses in half precision are noise; float64 is for those who check gradients."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _masked_log_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    wide = _wide(logits)
    # The lowest finite number, not -inf: a row without any position must not turn into NaN.
    return wide.masked_fill(~allowed, torch.finfo(wide.dtype).min).log_softmax(-1)


def _weight_of(labels: Tensor, weights: Tensor) -> Tensor:
    return weights.to(labels.device)[labels.clamp_min(0)]


def _terms(log_p: Tensor, targets: Tensor, allowed: Tensor | None, config: LossConfig) -> Tensor:
    hit = log_p.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    if config.name == "label_smoothing":
        smooth = _mean(log_p, allowed)
        terms = -(1 - config.smoothing) * hit - config.smoothing * smooth
    elif config.name == "focal":
        # Where p is 1 to the last bit, a power below 1 has no slope: keep away from 0.
        missed = (-torch.expm1(hit)).clamp_min(torch.finfo(hit.dtype).tiny)
        terms = -(missed**config.gamma) * hit
    else:
        terms = -hit
    return torch.where(targets != IGNORED, terms, torch.zeros_like(terms))


def _mean(log_p: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return log_p.mean(-1)
    return log_p.masked_fill(~allowed, 0).sum(-1) / allowed.sum(-1).clamp_min(1)
