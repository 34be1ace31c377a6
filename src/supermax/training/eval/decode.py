"""Span decoding: from the logits of windows to the answers of examples.

    windows ──decode_spans()──▶ Answers: best span of each example, its score, score of no answer
    Answers ──predict_spans()─▶ spans, or none, by the no-answer policy
    margins, gains() ──calibrate()──▶ threshold of the policy "calibrated"
                     └─cross_fit()──▶ thresholds to evaluate that policy with

A span's score is the sum of its start and end logits, as in SQuAD 2. The score of no answer is
that of position 0, minimized over an example's windows: one window that holds an answer is
enough.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError
from supermax.training.config import DecodeConfig, NoAnswerConfig
from supermax.training.eval.metrics import Floats, Ints, Span, token_f1

FOLDS = 5
"""Folds of the groups of a split, to cross-fit a calibrated threshold."""


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
    config: DecodeConfig,
) -> Answers:
    """Return the best answer of each example over all of its windows.

    `ids` [W] names each window's example. `offsets` [W, L, 2] are the characters of the tokens
    of the context, (-1, -1) elsewhere: on the question, special tokens and padding.
    """
    start, end = (np.asarray(x, dtype=np.float64) for x in (start_logits, end_logits))
    token_offsets = np.asarray(offsets, dtype=np.int64)
    row_of = {name: row for row, name in enumerate(dict.fromkeys(ids))}
    rows = np.array([row_of[name] for name in ids], dtype=np.int64)
    null = np.full(len(row_of), np.inf)
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        np.minimum.at(null, rows, start[:, 0] + end[:, 0])
    scores, spans = _best_of_windows(start, end, token_offsets, config)
    # Sort by example, then best first; ties go to the earliest window.
    order = np.lexsort((-scores, rows))
    first = order[np.unique(rows[order], return_index=True)[1]]
    return Answers(tuple(row_of), spans[first], scores[first], null)


def _best_of_windows(
    start: Floats, end: Floats, offsets: Ints, config: DecodeConfig
) -> tuple[Floats, Ints]:
    """Return score [W] and characters [W, 2] of the best span of each window."""
    context = offsets[..., 0] >= 0
    start, end = (np.where(context, logits, -np.inf) for logits in (start, end))
    firsts, lasts = _top(start, config.n_best), _top(end, config.n_best)
    length = lasts[:, None, :] - firsts[:, :, None] + 1
    sums = np.take_along_axis(start, firsts, 1)[:, :, None]
    sums = sums + np.take_along_axis(end, lasts, 1)[:, None, :]
    sums = np.where((length >= 1) & (length <= config.max_answer), sums, -np.inf)
    flat = sums.reshape(len(sums), -1)
    rows, best = np.arange(len(flat)), flat.argmax(1)
    first, last = firsts[rows, best // lasts.shape[1]], lasts[rows, best % lasts.shape[1]]
    scores = flat[rows, best]
    # If no pair of the n best is a valid span, fall back to the best single token.
    single = (start + end).argmax(1)
    no_pair = np.isneginf(scores)
    first, last = np.where(no_pair, single, first), np.where(no_pair, single, last)
    scores = np.where(no_pair, (start + end)[rows, single], scores)
    spans = np.stack([offsets[rows, first, 0], offsets[rows, last, 1]], axis=1)
    return scores, np.where(np.isneginf(scores)[:, None], -1, spans)


def _top(logits: Floats, count: int) -> Ints:
    """Return the positions of the largest logits [W, count]; ties go to the earliest."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


def predict_spans(
    answers: Answers, config: NoAnswerConfig, calibrated: float | Floats | None = None
) -> list[list[Span]]:
    """Return each example's answer: a list of one span, or an empty list for no answer.

    The policy decides. none: every example with a token is answered. threshold: examples whose
    margin is above it. ratio: examples whose exp(margin) is above it, which within one window is
    the probability of the best span over that of no answer. calibrated: like threshold, with the
    value of `calibrate`, or one value for each example.
    """
    margins = answers.margin
    if config.policy == "none":
        answered = np.ones(len(margins), dtype=np.bool_)
    else:
        answered = margins > _threshold(config, calibrated)
    answered &= answers.spans[:, 0] >= 0
    return [
        [(int(first), int(last))] if is_answered else []
        for is_answered, (first, last) in zip(answered, answers.spans, strict=True)
    ]


def _threshold(config: NoAnswerConfig, calibrated: float | Floats | None) -> float | Floats:
    if config.policy == "threshold":
        return config.threshold
    if config.policy == "ratio":
        return math.log(config.ratio)  # exp(margin) may overflow
    if calibrated is None:
        raise UserError(
            "The no-answer policy 'calibrated' needs a threshold fitted on validation data, and "
            "none was given."
        )
    return calibrated


def gains(
    best: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> Floats:
    """Return the difference in token F1 between the best answer of an example and none [N]."""
    without_answer = np.array([float(not spans) for spans in true])
    return np.asarray(token_f1(best, true, texts) - without_answer)


def calibrate(margins: Floats, gain: Floats) -> float:
    """Return the threshold of the margin with the best mean token F1 on these examples.

    Ties go to the threshold closest to 0.
    """
    usable = np.isfinite(margins)
    return best_threshold(margins[usable], gain[usable])


def cross_fit(margins: Floats, gain: Floats, groups: Sequence[str]) -> Floats:
    """Return a threshold for each example [N], fitted on groups of other folds than its own.

    Metrics with these thresholds estimate a calibrated threshold on unseen examples: no example
    influences its own threshold.
    """
    fold = _folds(groups)
    thresholds = np.zeros(len(margins))
    for held_out in range(FOLDS):
        others = fold != held_out
        thresholds[~others] = calibrate(margins[others], gain[others])
    return thresholds


def _folds(groups: Sequence[str]) -> Ints:
    """Return the fold of each example, which depends only on the names of all groups."""
    digests = {g: hashlib.sha256(g.encode("utf-8", "surrogatepass")).digest() for g in groups}
    fold = {group: i % FOLDS for i, group in enumerate(sorted(digests, key=digests.__getitem__))}
    return np.array([fold[group] for group in groups], dtype=np.int64)


def best_threshold(margins: Floats, gain: Floats) -> float:
    """Return the threshold above which the gains have the largest sum; ties: the closest to 0."""
    if not len(margins):
        return 0.0
    order = np.argsort(-margins, kind="stable")
    values, sums = margins[order], np.append(0.0, np.cumsum(gain[order]))
    # Cuts between two values that differ, and at both ends: above all, and below all.
    cuts = np.flatnonzero(np.concatenate([[True], np.diff(values) != 0, [True]]))
    thresholds = _between(values, cuts)
    best = np.isclose(sums[cuts], sums[cuts].max(), rtol=0, atol=1e-9)
    return float(min(thresholds[best], key=abs))


def _between(values: Floats, cuts: npt.NDArray[np.intp]) -> Floats:
    """Return a threshold for each cut of descending values, midway between its neighbours."""
    padded = np.concatenate([[values[0] + 1], values, [values[-1] - 1]])
    above, below = padded[cuts], padded[cuts + 1]
    middle = (above + below) / 2
    # An answer is given strictly above the threshold; the middle of two neighbours may round up.
    return np.where(middle < above, middle, below)
