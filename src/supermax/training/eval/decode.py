"""Span decoding: from the logits of windows to the answers of examples.

    windows ──decode_spans()──▶ Answers: best span of each example, its score, score of no answer
    Answers ──predict_spans()─▶ spans, or none, by the no-answer policy

A span's score is the sum of its start and end logits, as in SQuAD 2. The score of no answer is
that of position 0, minimized over an example's windows: one window that holds an answer is
enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError
from supermax.training.config import NoAnswerConfig
from supermax.training.eval.metrics import Floats, Ints, Span, token_f1

_CHUNK = 2048  # windows whose pairs of starts and ends are in memory at the same time


class SpanLimits(NamedTuple):
    """Limits of the spans that are considered."""

    n_best: int = 20
    """Most likely starts, and ends, whose pairs are considered."""
    max_answer: int = 64
    """Tokens of the longest span."""


@dataclass(frozen=True)
class Answers:
    """Best answers, one row for each example in the order of their first windows."""

    ids: tuple[str, ...]
    spans: Ints
    """Characters [start, end) of the best answer [N, 2]; (-1, -1): no window has any token."""
    score: Floats
    """Score of the best answer [N]; -inf if no window has any token."""
    null: Floats
    """Score of no answer [N]."""

    @property
    def margin(self) -> Floats:
        """Score of the best answer minus that of no answer [N]."""
        return np.asarray(self.score - self.null)


def decode_spans(
    ids: Sequence[str],
    start_logits: npt.ArrayLike,
    end_logits: npt.ArrayLike,
    offsets: npt.ArrayLike,
    limits: SpanLimits,
) -> Answers:
    """Return the best answer of each example over all of its windows.

    `ids` [W] names each window's example. `offsets` [W, L, 2] are the characters of the tokens
    of the context, (-1, -1) elsewhere: on the question, special tokens and padding.
    """
    return decode_spans_within(ids, start_logits, end_logits, offsets, [limits])[0]


def decode_spans_within(
    ids: Sequence[str],
    start_logits: npt.ArrayLike,
    end_logits: npt.ArrayLike,
    offsets: npt.ArrayLike,
    limits: Sequence[SpanLimits],
) -> list[Answers]:
    """Return the answers of `decode_spans` within each of the limits, in one pass over the
    logits."""
    start, end = (np.asarray(x, dtype=np.float64) for x in (start_logits, end_logits))
    token_offsets = np.asarray(offsets, dtype=np.int64)
    row_of = {name: row for row, name in enumerate(dict.fromkeys(ids))}
    rows = np.array([row_of[name] for name in ids], dtype=np.int64)
    null = np.full(len(row_of), np.inf)
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        np.minimum.at(null, rows, start[:, 0] + end[:, 0])
    pieces = [
        _best_of_windows(start[part], end[part], token_offsets[part], limits)
        for part in (slice(i, i + _CHUNK) for i in range(0, len(rows), _CHUNK))
    ]
    result = []
    for each in zip(*pieces, strict=True):
        scores, spans = (np.concatenate(arrays) for arrays in zip(*each, strict=True))
        # Sort by example, then best first; ties go to the earliest window.
        order = np.lexsort((-scores, rows))
        first = order[np.unique(rows[order], return_index=True)[1]]
        result.append(Answers(tuple(row_of), spans[first], scores[first], null))
    return result


def _best_of_windows(
    start: Floats, end: Floats, offsets: Ints, limits: Sequence[SpanLimits]
) -> list[tuple[Floats, Ints]]:
    """Return, for each of the limits, score [W] and characters [W, 2] of each window's best span.

    The pairs of all limits are among those with the largest `n_best`, which are computed once.
    """
    context = offsets[..., 0] >= 0
    start, end = (np.where(context, logits, -np.inf) for logits in (start, end))
    most = max(each.n_best for each in limits)
    firsts, lasts = _top(start, most), _top(end, most)
    lengths = lasts[:, None, :] - firsts[:, :, None] + 1
    sums = np.take_along_axis(start, firsts, 1)[:, :, None]
    sums = sums + np.take_along_axis(end, lasts, 1)[:, None, :]
    sums = np.where(lengths >= 1, sums, -np.inf)
    # If no pair of the n best is a valid span, fall back to the best single token.
    single = (start + end).argmax(1)
    rows = np.arange(len(start))
    result = []
    for each in limits:
        n = min(each.n_best, firsts.shape[1])
        short = lengths[:, :n, :n] <= each.max_answer
        flat = np.where(short, sums[:, :n, :n], -np.inf).reshape(len(rows), -1)
        best = flat.argmax(1)
        scores, no_pair = flat[rows, best], np.isneginf(flat[rows, best])
        first = np.where(no_pair, single, firsts[rows, best // n])
        last = np.where(no_pair, single, lasts[rows, best % n])
        scores = np.where(no_pair, (start + end)[rows, single], scores)
        spans = np.stack([offsets[rows, first, 0], offsets[rows, last, 1]], axis=1)
        result.append((scores, np.where(np.isneginf(scores)[:, None], -1, spans)))
    return result


def _top(logits: Floats, count: int) -> Ints:
    """Return the positions of the largest logits [W, count]; ties go to the earliest."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


def predict_spans(
    answers: Answers, config: NoAnswerConfig, calibrated: float | Floats | None = None
) -> list[list[Span]]:
    """Return each example's answer: a list of one span, or an empty list for no answer.

    The policy decides. none: every example with a token is answered. threshold: examples whose
    margin is above it. ratio: examples whose exp(margin) is above it, which within one window is
    the probability of the best span over that of no answer. calibrated: like threshold, with a
    fitted value, or one value for each example; so without a policy.
    """
    threshold: float | Floats | None = fixed_threshold(config)
    if threshold is None:
        threshold = calibrated
    if threshold is None:
        raise UserError(
            "The no-answer policy 'calibrated' needs a threshold fitted on validation data, and "
            "none was given."
        )
    answered = answers.margin > threshold
    if config.policy == "none":
        answered[:] = True
    answered &= answers.spans[:, 0] >= 0
    return [
        [(int(first), int(last))] if is_answered else []
        for is_answered, (first, last) in zip(answered, answers.spans, strict=True)
    ]


def fixed_threshold(config: NoAnswerConfig) -> float | None:
    """Return the margin above which a policy answers; None if it has to be fitted."""
    if config.policy == "none":
        return -math.inf
    if config.policy == "threshold":
        return config.threshold
    if config.policy == "ratio":
        return math.log(config.ratio)  # exp(margin) may overflow
    return None


def gains(
    best: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> Floats:
    """Return the difference in token F1 between the best answer of an example and none [N]."""
    without_answer = np.array([float(not spans) for spans in true])
    return np.asarray(token_f1(best, true, texts) - without_answer)


def best_threshold(margins: Floats, gain: Floats) -> tuple[float, float]:
    """Return the threshold of the margin above which the gains have the largest sum, and that sum.

    Ties go to the threshold closest to 0. Examples without any token, whose margins are not
    finite, do not count.
    """
    usable = np.isfinite(margins)
    margins, gain = margins[usable], gain[usable]
    if not len(margins):
        return 0.0, 0.0
    order = np.argsort(-margins, kind="stable")
    values, sums = margins[order], np.append(0.0, np.cumsum(gain[order]))
    # Cuts between two values that differ, and at both ends: above all, and below all.
    cuts = np.flatnonzero(np.concatenate([[True], np.diff(values) != 0, [True]]))
    thresholds, most = _between(values, cuts), sums[cuts].max()
    best = np.isclose(sums[cuts], most, rtol=0, atol=1e-9)
    return float(min(thresholds[best], key=abs)), float(most)


def _between(values: Floats, cuts: npt.NDArray[np.intp]) -> Floats:
    """Return a threshold for each cut of descending values, midway between its neighbours."""
    padded = np.concatenate([[values[0] + 1], values, [values[-1] - 1]])
    above, below = padded[cuts], padded[cuts + 1]
    middle = (above + below) / 2
    # An answer is given strictly above the threshold; the middle of two neighbours may round up.
    return np.where(middle < above, middle, below)
