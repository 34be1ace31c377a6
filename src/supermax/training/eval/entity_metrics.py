"""Metrics of predicted entities, as seqeval computes them in its default mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from supermax.errors import UserError
from supermax.training.data.entities import Entity
from supermax.training.eval.metrics import Floats, Ints

HITS, PREDICTED, TRUE = range(3)


def entity_metrics(
    true: Sequence[Iterable[Entity]], predicted: Sequence[Iterable[Entity]], types: int
) -> dict[str, float]:
    """Return every metric of entities, from those of each text.

    A predicted entity is correct if its characters and its type are exactly those of a true one.
    Precision, recall and F1 are of the entities of all texts and types together, f1_0 and so on
    of one type. A ratio with the denominator 0 is 0.
    """
    if not true:
        raise UserError("There are no examples to measure the entities on.")
    return metrics_of_counts(entity_counts(true, predicted, types).sum(axis=0))


def entity_counts(
    true: Sequence[Iterable[Entity]], predicted: Sequence[Iterable[Entity]], types: int
) -> Ints:
    """Return the numbers of HITS, PREDICTED and TRUE entities [texts, types, 3]."""
    counts = np.zeros((len(true), types, 3), dtype=np.int64)
    for row, (golds, guesses) in enumerate(zip(true, predicted, strict=True)):
        gold, guessed = set(golds), set(guesses)
        for column, found in ((HITS, gold & guessed), (PREDICTED, guessed), (TRUE, gold)):
            for entity in found:
                counts[row, entity.type, column] += 1
    return counts


def metrics_of_counts(counts: Ints) -> dict[str, float]:
    """Return the metrics from the numbers of entities of all texts [types, 3]."""
    of_types, of_all = _ratios(counts), _ratios(counts.sum(axis=0))
    precision, recall, f1 = map(float, of_all)
    return {
        "entity_f1": f1,
        "entity_precision": precision,
        "entity_recall": recall,
        **{f"f1_{i}": float(value) for i, value in enumerate(of_types[..., 2])},
    }


def _ratios(counts: Ints) -> Floats:
    """Return precision, recall and F1 in the last dimension."""
    hits, predicted, true = np.moveaxis(counts.astype(np.float64), -1, 0)
    parts = ((hits, predicted), (hits, true), (2 * hits, predicted + true))
    ratios = [np.divide(a, b, out=np.zeros_like(a), where=b > 0) for a, b in parts]
    return np.stack(ratios, axis=-1)
