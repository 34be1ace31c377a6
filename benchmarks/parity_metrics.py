"""Metrics that all sides of parity.py share. Nothing here imports Supermax.

They come from other libraries, or are written from the published rules: F1 of classes and labels
by scikit-learn, correlations by scipy, entity F1 by seqeval, token F1 and exact match as SQuAD 2.0
defines them.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from parity_data import LABEL_THRESHOLD, Row


def macro_f1(true: Sequence[int], predicted: Sequence[int]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(true, predicted, average="macro"))


def normalised(text: str) -> list[str]:
    """Return tokens: lower case, without punctuation and articles, split at white space."""
    lower = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", lower).split()


def answer_f1(predicted: str, gold: str) -> float:
    """Return the token F1 of SQuAD 2.0; if one is empty, 1 if both are, else 0."""
    ours, theirs = normalised(predicted), normalised(gold)
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def position_f1(text: str, predicted: tuple[int, int], gold: tuple[int, int]) -> float:
    """Return the F1 of the words that spans touch, by position, not by text."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    ours, theirs = (
        {i for i, (begin, end) in enumerate(words) if begin < b and end > a}
        for a, b in (predicted, gold)
    )
    return 2 * len(ours & theirs) / max(1, len(ours) + len(theirs))


@dataclass(frozen=True)
class Answer:
    """Best span of a row, and the margin of its score over that of no answer."""

    begin: int
    end: int
    margin: float


def answer_metrics(rows: Sequence[Row], answers: Sequence[Answer]) -> dict[str, float]:
    """Return F1 and exact match of rows with an answer; F1 of all with the best threshold."""
    f1, exact, positions, changes = [], [], [], []
    for row, answer in zip(rows, answers, strict=True):
        given = row.text[answer.begin : answer.end]
        score = answer_f1(given, row.answer)
        changes.append((answer.margin, score - float(not row.answer)))
        if row.answer:
            gold = (row.start, row.start + len(row.answer))
            f1.append(score)
            exact.append(normalised(given) == normalised(row.answer))
            positions.append(position_f1(row.text, (answer.begin, answer.end), gold))
    # Start with no answers, then add them by decreasing margin.
    total = best = float(sum(not row.answer for row in rows))
    for _, change in sorted(changes, key=lambda change: -change[0]):
        total += change
        best = max(best, total)
    return {
        "has_answer_f1": sum(f1) / len(f1),
        "has_answer_exact": sum(exact) / len(exact),
        "has_answer_position_f1": sum(positions) / len(positions),
        "best_squad_f1": best / len(rows),
    }


def number_metrics(rows: Sequence[Row], numbers: Sequence[float]) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation; 0 if all numbers are equal, NaN in scipy."""
    from scipy import stats  # type: ignore[import-untyped]

    if len(set(numbers)) == 1:
        return {"spearman": 0.0, "pearson": 0.0}
    true = [row.value for row in rows]
    return {
        "spearman": float(stats.spearmanr(true, numbers).statistic),
        "pearson": float(stats.pearsonr(true, numbers).statistic),
    }


def label_metrics(
    rows: Sequence[Row], probabilities: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Return macro and micro F1 at a threshold of 0.5, and the mean average precision.

    A label that no row has is left out of the mean: its average precision is not defined, and 0 in
    scikit-learn.
    """
    from sklearn.metrics import average_precision_score, f1_score

    likely = np.asarray(probabilities)
    true = np.zeros(likely.shape, dtype=int)
    for i, row in enumerate(rows):
        true[i, list(row.labels)] = 1
    found = likely > LABEL_THRESHOLD
    f1 = {
        f"{average}_f1": float(f1_score(true, found, average=average, zero_division=0))
        for average in ("macro", "micro")
    }
    occurs = true.any(axis=0)
    precision = average_precision_score(true[:, occurs], likely[:, occurs], average="macro")
    return f1 | {"auprc": float(precision)}


def entity_metrics(rows: Sequence[Row], tags: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of entities, of all types together.

    `tags`: those predicted, one for each word. Needs the package seqeval.
    """
    from seqeval import metrics  # type: ignore[import-not-found, import-untyped, unused-ignore]

    true, found = [list(row.tags) for row in rows], [list(some) for some in tags]
    return {
        f"entity_{name}": float(getattr(metrics, f"{name}_score")(true, found, zero_division=0))
        for name in ("f1", "precision", "recall")
    }


def tags_of_entities(row: Row, entities: Iterable[tuple[int, int, str]]) -> list[str]:
    """Return the tag of each word, from entities as characters [start, end) with their type."""
    tags = ["O"] * len(row.words)
    for start, end, kind in entities:
        inside = [i for i, (a, b) in enumerate(row.word_spans) if start < b and end > a]
        for i in inside:
            tags[i] = f"{'B' if i == inside[0] else 'I'}-{kind}"
    return tags
