"""From the logits of windows to the answers of examples.

    windows ──decode()──▶ Answers: each example's best span, its score, and the score of none
    Answers ──predict()─▶ spans, or none, as the no-answer policy says
    margins, gains() ──calibrate()──▶ the threshold of the policy "calibrated"
                     └─cross_fit()──▶ those that its value is measured with

Scores are sums of a start's and an end's logit, as in SQuAD 2. The score of no answer is that of
position 0, the least over an example's windows: one window that holds an answer is enough.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError
from supermax.training.config import DecodeConfig, NoAnswerConfig
from supermax.training.metrics import Floats, Ints, Span, token_f1

FOLDS = 5
"""Parts that the groups of a split are dealt to, to judge a calibrated threshold."""


@dataclass(frozen=True)
class Answers:
    """One row per example, in the order in which their windows first appear."""

    ids: tuple[str, ...]
    spans: Ints
    """Characters [start, end) of the best answer [N, 2]; (-1, -1): no window has any token."""
    score: Floats
    """Of the best answer [N]; -inf where there is no token."""
    null: Floats
    """Of no answer [N]."""

    @property
    def margin(self) -> Floats:
        """By how much the best answer beats no answer."""
        return np.asarray(self.score - self.null)


def decode(
    ids: Sequence[str], start_logits: Any, end_logits: Any, offsets: Any, config: DecodeConfig
) -> Answers:
    """The best answer of every example over all of its windows.

    `ids` [W] names each window's example. `offsets` [W, L, 2] are the characters of the tokens
    of the context, (-1, -1) elsewhere: on the question, special tokens and padding.
    """
    start, end = (np.asarray(x, dtype=np.float64) for x in (start_logits, end_logits))
    where = np.asarray(offsets, dtype=np.int64)
    names = {name: row for row, name in enumerate(dict.fromkeys(ids))}
    rows = np.array([names[name] for name in ids], dtype=np.int64)
    null = np.full(len(names), np.inf)
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        np.minimum.at(null, rows, start[:, 0] + end[:, 0])
    scores, spans = _best_of_windows(start, end, where, config)
    # By example, then best first; among equals the earliest window.
    order = np.lexsort((-scores, rows))
    first = order[np.unique(rows[order], return_index=True)[1]]
    return Answers(tuple(names), spans[first], scores[first], null)


def _best_of_windows(
    start: Floats, end: Floats, where: Ints, config: DecodeConfig
) -> tuple[Floats, Ints]:
    context = where[..., 0] >= 0
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
    # Where none of the pairs is a span, the best single token still is one.
    single = (start + end).argmax(1)
    lost = np.isneginf(scores)
    first, last = np.where(lost, single, first), np.where(lost, single, last)
    scores = np.where(lost, (start + end)[rows, single], scores)
    spans = np.stack([where[rows, first, 0], where[rows, last, 1]], axis=1)
    return scores, np.where(np.isneginf(scores)[:, None], -1, spans)


def _top(logits: Floats, count: int) -> Ints:
    """The positions of the largest logits [W, count]; the earliest among equals."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


def predict(
    answers: Answers, config: NoAnswerConfig, calibrated: float | Floats | None = None
) -> list[list[Span]]:
    """Each example's answer as a list of one span, or of none where the policy says so.

    none: every example with a token is answered. threshold: where the margin is above it. ratio:
    where exp(margin) is, which within one window is the probability of the best span over that
    of no answer. calibrated: as threshold, with the value that `calibrate` found, or
    one for each example.
    """
    margins = answers.margin
    if config.policy == "none":
        given = np.ones(len(margins), dtype=np.bool_)
    else:
        given = margins > _threshold(config, calibrated)
    given &= answers.spans[:, 0] >= 0
    return [
        [(int(first), int(last))] if some else []
        for some, (first, last) in zip(given, answers.spans, strict=True)
    ]


def _threshold(config: NoAnswerConfig, calibrated: float | Floats | None) -> float | Floats:
    if config.policy == "threshold":
        return config.threshold
    if config.policy == "ratio":
        return math.log(config.ratio)  # in logs, as the exponential of a margin may overflow
    if calibrated is None:
        raise UserError(
            "The no-answer policy 'calibrated' needs a threshold that was found on validation "
            "data, and none was given."
        )
    return calibrated


def gains(answers: Answers, true: Sequence[Sequence[Span]], texts: Sequence[str]) -> Floats:
    """Return by how much each example's token F1 grows when it is answered [N].

    `true` and `texts` follow `answers.ids`.
    """
    always = predict(answers, NoAnswerConfig(policy="none"))
    silent = np.array([float(not spans) for spans in true])
    return np.asarray(token_f1(always, true, texts) - silent)


def calibrate(margins: Floats, gain: Floats) -> float:
    """Return the threshold of the margin with the best mean token F1 on these examples.

    Among equally good ones, the closest to 0.
    """
    usable = np.isfinite(margins)
    return best_threshold(margins[usable], gain[usable])


def cross_fit(margins: Floats, gain: Floats, groups: Sequence[str]) -> Floats:
    """Return a threshold for each example [N], fitted on groups of other folds than its own.

    Predictions by these thresholds say what a calibrated threshold is worth on examples that it
    has not seen: no example has a part in its own.
    """
    fold = _folds(groups)
    thresholds = np.zeros(len(margins))
    for held_out in range(FOLDS):
        others = fold != held_out
        thresholds[~others] = calibrate(margins[others], gain[others])
    return thresholds


def _folds(groups: Sequence[str]) -> Ints:
    """The fold of each example. Follows from the names of the groups alone, not their order."""
    digests = {g: hashlib.sha256(g.encode("utf-8", "surrogatepass")).digest() for g in groups}
    number = {group: i % FOLDS for i, group in enumerate(sorted(digests, key=digests.__getitem__))}
    return np.array([number[group] for group in groups], dtype=np.int64)


def best_threshold(margins: Floats, gain: Floats) -> float:
    """The threshold above which the gains add up to the most; among equals, closest to 0."""
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
    """A threshold for every cut of values in falling order: midway between its neighbours."""
    padded = np.concatenate([[values[0] + 1], values, [values[-1] - 1]])
    above, below = padded[cuts], padded[cuts + 1]
    middle = (above + below) / 2
    # An answer is given strictly above the threshold; the middle of two neighbours may round up.
    return np.where(middle < above, middle, below)
