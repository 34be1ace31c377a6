"""Composition of a Trainer's loss: how the losses of slices add up to that of the batch.

A loss is either a sum over the examples divided by `num_items_in_batch`, or a mean over examples
or over labels, or it depends on the batch as a whole (contrastive losses). Which one it is depends
on the model, and the Trainer does not know: some models accept `num_items_in_batch` and ignore it.
So it is tested on a few examples of a batch. The losses are those of models of transformers, which
do not weight their examples: with weights the test could not tell, since at the start of a
training all examples have about the same loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import torch

from supermax.trainer.slicing import slice_of

_TRIED = 6  # examples
_TOLERANCE = 2e-2  # relative; bf16 differs by about 1e-2 with the shape of a batch


class Composition(StrEnum):
    """Weights of the losses of slices in that of the batch."""

    SUM = "sum over num_items_in_batch"
    EXAMPLES = "mean over the examples"
    LABELS = "mean over the labels"
    WHOLE = "function of the whole batch"


Loss = Callable[[Any, Any], float]
"""(batch, num_items_in_batch) → loss."""


def composition_of(loss: Loss, batch: Any, size: int, *, counted: bool) -> Composition | None:
    """Return the composition of a loss; None: this batch does not tell. `counted`: the Trainer
    passes num_items_in_batch."""
    rows = _rows(batch, size)
    if len(rows) < 2:
        return None
    some = slice_of(batch, rows, size)
    singles = [slice_of(batch, [row], size) for row in rows]
    items = label_count(some) or len(rows) if counted else None
    whole = loss(some, items)
    parts = [loss(single, items) for single in singles]
    if not all(map(_usable, (whole, *parts))):
        return None
    if items is not None and _near(loss(some, 2 * items), whole / 2):
        return Composition.SUM if _near(sum(parts), whole) else Composition.WHOLE
    means = {Composition.EXAMPLES: sum(parts) / len(parts)}
    counts = [label_count(single) or 0 for single in singles]
    if len(set(counts)) > 1:
        labels = sum(count * part for count, part in zip(counts, parts, strict=True))
        means[Composition.LABELS] = labels / sum(counts)
    nearest = min(means, key=lambda kind: abs(means[kind] - whole))
    return nearest if _near(means[nearest], whole) else Composition.WHOLE


def weight_of(kind: Composition, part: Any, rows: int, batch: Any, size: int) -> float:
    """Return the factor of a slice's loss in the loss of its batch."""
    if kind is Composition.SUM:
        return 1.0
    if kind is Composition.LABELS:
        return (label_count(part) or 0) / max(1, label_count(batch) or 0)
    return rows / size


def label_count(batch: Any) -> int | None:
    """Return the number of labels that are not masked with -100; None: the batch has none."""
    labels = _labels(batch)
    return None if labels is None else int(labels.ne(-100).sum())


def _labels(batch: Any) -> torch.Tensor | None:
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    return labels if isinstance(labels, torch.Tensor) and labels.ndim > 0 else None


def _rows(batch: Any, size: int) -> list[int]:
    """Return rows to try, with few labels and with many. A row without labels is none of them: its
    mean is NaN."""
    labels = _labels(batch)
    if labels is None:
        return [*range(size)][:_TRIED]
    counts = labels.ne(-100).reshape(len(labels), -1).sum(1).tolist()
    order = sorted((row for row in range(len(counts)) if counts[row]), key=counts.__getitem__)
    few = order[: _TRIED // 2]
    return [*few, *order[len(few) :][-_TRIED // 2 :]]


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other)) + 1e-6


def _usable(value: float) -> bool:
    return abs(value) < float("inf")
