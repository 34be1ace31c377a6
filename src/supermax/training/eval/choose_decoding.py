"""Choice of the settings that decode spans, from the outputs of an evaluation.

    logits ──decode_spans_within()──▶ Answers within each of options() ──▶ Candidates
    Candidates ──choose()─────▶ Decoding: the best settings on all examples
               └─cross_fit()──▶ answers to evaluate that choice with

No training is needed to compare these settings, so no space of the package searches them. The
groups of examples are divided into folds, and the answers of a fold are decoded with the settings
that are best on the other folds. So no example influences the settings that it is evaluated with.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from supermax.training.config import DecodeConfig, Decoding, NoAnswerConfig
from supermax.training.eval.decode import (
    Answers,
    SpanLimits,
    best_threshold,
    fixed_threshold,
    predict_spans,
)
from supermax.training.eval.metrics import (
    Bools,
    Floats,
    Ints,
    Span,
    answer_values,
)

N_BEST = (20, 5, 1)
MAX_ANSWER = (64, 32, 16, 8, 128, 256)
"""Values that are compared; of equally good ones, the first is chosen."""
FOLDS = 5
"""Folds of the groups of a split."""


def options(config: DecodeConfig) -> list[SpanLimits]:
    """Return the limits to compare: those of the configuration, or all where it has none."""
    n_best = N_BEST if config.n_best is None else (config.n_best,)
    max_answer = MAX_ANSWER if config.max_answer is None else (config.max_answer,)
    return [SpanLimits(*each) for each in itertools.product(n_best, max_answer)]


@dataclass(frozen=True)
class Candidates:
    """Answers within each of some limits, and the gain of each over no answer."""

    limits: Sequence[SpanLimits]
    answers: Sequence[Answers]
    gains: Floats
    """Difference in a metric between an answer and no answer [limits, N]."""
    policy: NoAnswerConfig

    def best(self, rows: Bools) -> tuple[int, float]:
        """Return the limits with the largest sum of gains on some examples, and the threshold.

        Ties go to the first limits.
        """
        threshold = fixed_threshold(self.policy)
        found = []
        for answers, gains in zip(self.answers, self.gains, strict=True):
            margins = answers.margin[rows]
            if threshold is None:
                found.append(best_threshold(margins, gains[rows]))
            else:
                answered = (margins > threshold) & (answers.spans[rows, 0] >= 0)
                found.append((threshold, float(gains[rows][answered].sum())))
        sums = np.array([total for _, total in found])
        first = int(np.argmax(sums >= sums.max() - 1e-9))
        return first, found[first][0]


def candidates_of(
    limits: Sequence[SpanLimits],
    answers: Sequence[Answers],
    metric: str,
    policy: NoAnswerConfig,
    true: Sequence[Sequence[Span]],
    texts: Sequence[str],
) -> Candidates:
    """Return the candidates with their gains in a metric of spans."""
    by_limits = [list(map(tuple, each.spans.tolist())) for each in answers]
    gains = []
    for spans, truths, text in zip(zip(*by_limits, strict=True), true, texts, strict=True):
        distinct = list(set(spans))
        guesses = [(), *((span,) for span in distinct)]
        none, *values = answer_values(metric, guesses, truths, text)
        gain = {span: value - none for span, value in zip(distinct, values, strict=True)}
        gains.append([gain[span] for span in spans])
    return Candidates(limits, answers, np.array(gains).reshape(-1, len(limits)).T, policy)


def choose(candidates: Candidates) -> Decoding:
    """Return the settings that are best on all examples, for other data."""
    everything = np.ones(candidates.gains.shape[1], dtype=np.bool_)
    best, threshold = candidates.best(everything)
    fitted = fixed_threshold(candidates.policy) is None
    policy = candidates.policy.policy or "calibrated"
    return Decoding(*candidates.limits[best], policy, threshold if fitted else None)


def cross_fit(candidates: Candidates, groups: Sequence[str]) -> tuple[Ints, Floats]:
    """Return limits (their positions) and a threshold for each example [N], which are best on the
    groups of other folds than its own.

    Metrics with these settings estimate those of `choose` on unseen examples.
    """
    fold = folds_of(groups)
    best, thresholds = np.zeros(len(groups), dtype=np.int64), np.zeros(len(groups))
    for held_out in np.unique(fold):
        rows = fold == held_out
        best[rows], thresholds[rows] = candidates.best(~rows)
    return best, thresholds


def predict_cross_fitted(candidates: Candidates, groups: Sequence[str]) -> list[list[Span]]:
    """Return the answer of each example, decoded with its settings of `cross_fit`."""
    best, thresholds = cross_fit(candidates, groups)
    rows = np.arange(len(groups))
    answers = Answers(
        candidates.answers[0].ids,
        np.stack([each.spans for each in candidates.answers])[best, rows],
        np.stack([each.score for each in candidates.answers])[best, rows],
        candidates.answers[0].null,
    )
    return predict_spans(answers, candidates.policy, thresholds)


def folds_of(groups: Sequence[str]) -> Ints:
    """Return the fold of each example, which depends only on the names of all groups."""
    digests = {g: hashlib.sha256(g.encode("utf-8", "surrogatepass")).digest() for g in groups}
    fold = {group: i % FOLDS for i, group in enumerate(sorted(digests, key=digests.__getitem__))}
    return np.array([fold[group] for group in groups], dtype=np.int64)
