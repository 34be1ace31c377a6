"""Counts of predictions against the truth: a confusion matrix, and outcomes of span examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from supermax.training.data.examples import Example
from supermax.training.eval.evaluate import Evaluation
from supermax.training.eval.metrics import Span, confusion_matrix

MOST_CLASSES = 20
"""Classes above which no confusion matrix is stored, as each trial of a study has one."""


class Counts(TypedDict, total=False):
    """Counts of a model's predictions, as they are stored."""

    confusion: list[list[int]]
    """Numbers of examples by true class (rows) and predicted class (columns)."""
    spans: dict[str, int]
    """Numbers of examples by outcome."""


def counts_of(examples: Sequence[Example], evaluation: Evaluation) -> Counts:
    """Return the counts, each only if there are such examples and all predictions are finite."""
    counts: Counts = {}
    labelled = [e for e in examples if e.label is not None and e.id in evaluation.probabilities]
    probabilities = np.array([evaluation.probabilities[e.id] for e in labelled])
    if labelled and probabilities.shape[1] <= MOST_CLASSES and np.isfinite(probabilities).all():
        labels = np.array([e.label for e in labelled], dtype=np.int64)
        counts["confusion"] = confusion_matrix(labels, probabilities).tolist()
    with_spans = [e for e in examples if e.spans is not None and e.id in evaluation.spans]
    if with_spans and not np.isnan(evaluation.metrics.get("token_f1", 0.0)):
        outcomes = Counter(span_outcome(evaluation.spans[e.id], e.spans or ()) for e in with_spans)
        counts["spans"] = dict(sorted(outcomes.items()))
    return counts


def span_outcome(predicted: Sequence[Span], true: Sequence[Span]) -> str:
    """Return the outcome of a span example.

    exact; partial: characters in common; wrong: no characters in common; missed: answer not
    predicted; invented: answer predicted where there is none; rejected: rightly no answer.
    """
    if not true:
        return "invented" if predicted else "rejected"
    if not predicted:
        return "missed"
    if any(span in true for span in predicted):
        return "exact"
    overlap = any(a < d and c < b for a, b in predicted for c, d in true)
    return "partial" if overlap else "wrong"
