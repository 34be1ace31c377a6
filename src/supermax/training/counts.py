"""Counts of predictions against the truth: a confusion matrix, and outcomes of span examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from supermax.training.data.examples import Example
from supermax.training.evaluate import Evaluation
from supermax.training.metrics import Span

MOST_CLASSES = 20
"""Classes above which no matrix is kept: each trial of a study has one."""


def counts_of(examples: Sequence[Example], evaluation: Evaluation) -> dict[str, Any]:
    """Return `confusion` (rows: true class, columns: predicted class) and `spans` (examples by
    outcome), where the examples have them and the predictions are finite."""
    found: dict[str, Any] = {}
    asked = [e for e in examples if e.label is not None and e.id in evaluation.probabilities]
    given = np.array([evaluation.probabilities[e.id] for e in asked])
    if asked and given.shape[1] <= MOST_CLASSES and np.isfinite(given).all():
        matrix = np.zeros((given.shape[1],) * 2, dtype=np.int64)
        labels = np.array([e.label for e in asked], dtype=np.int64)
        np.add.at(matrix, (labels, given.argmax(axis=1)), 1)
        found["confusion"] = matrix.tolist()
    sought = [e for e in examples if e.spans is not None and e.id in evaluation.spans]
    if sought and not np.isnan(evaluation.metrics.get("token_f1", 0.0)):
        outcomes = Counter(outcome(evaluation.spans[e.id], e.spans or ()) for e in sought)
        found["spans"] = dict(sorted(outcomes.items()))
    return found


def outcome(given: Sequence[Span], true: Sequence[Span]) -> str:
    """Name what became of a span example: exact, partial (characters in common), wrong (none),
    missed (no answer given), invented (there is none) or rejected (none, and none given)."""
    if not true:
        return "invented" if given else "rejected"
    if not given:
        return "missed"
    if any(one in true for one in given):
        return "exact"
    overlap = any(a < d and c < b for a, b in given for c, d in true)
    return "partial" if overlap else "wrong"
