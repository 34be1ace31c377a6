"""Composition of a Trainer's loss: how the losses of slices add up to that of the batch.

A loss is either a sum over the examples divided by `num_items_in_batch`, or a mean over examples
or over labels, or it depends on the batch as a whole (contrastive losses, class weights). Which
one it is depends on the model, and the Trainer does not know: some models accept
`num_items_in_batch` and ignore it. So it is tested on a few examples of a batch. At the start of a
training all examples have about the same loss, and class weights would not show. So the test
scales the last linear layer, and its result is kept once a batch has more than one class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from supermax.trainer.slicing import NotSliceable, slice_of

_TRIED = 6  # examples
_EXACT = 2e-3  # relative difference in fp32, with TF32 products
_ROUNDED = 2e-2  # bf16 differs by about 1e-2 with the shape of a batch
_SCALE = 30.0  # of the last layer: initial weights have a standard deviation of about 0.02


class Composition(StrEnum):
    """Weights of the losses of slices in that of the batch."""

    SUM = "sum over num_items_in_batch"
    EXAMPLES = "mean over the examples"
    LABELS = "mean over the labels"
    WHOLE = "function of the whole batch"


Loss = Callable[[Any, Any], float]
"""(batch, num_items_in_batch) → loss."""


class KnownComposition:
    """Composition of one loss of a model, tested until a batch shows it."""

    def __init__(self) -> None:
        self._found: Composition | None = None

    def of(
        self, model: nn.Module, loss: Loss, batch: Any, size: int, counted: bool
    ) -> Composition:
        """Return the composition. `counted`: the Trainer passes num_items_in_batch. Raise
        NotSliceable for a function of the whole batch."""
        found = self._found or _tested(model, loss, batch, size, counted)
        if found is Composition.WHOLE:
            raise NotSliceable("the loss of a batch is not the mean of the losses of its examples")
        if _several_classes(batch):
            self._found = found
        return found or (Composition.SUM if counted else Composition.EXAMPLES)


def _tested(
    model: nn.Module, loss: Loss, batch: Any, size: int, counted: bool
) -> Composition | None:
    """Return the composition without dropout and gradients; None: this batch does not tell."""
    floats = [each for each in model.parameters() if each.is_floating_point()]
    exact = all(each.dtype is torch.float32 for each in floats)
    device = floats[0].device.type if floats else "cpu"
    in_fp32 = torch.autocast(device, enabled=False) if exact else contextlib.nullcontext()
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(), in_fp32, _different_losses(model):
            return composition_of(
                loss, batch, size, counted=counted, tolerance=_EXACT if exact else _ROUNDED
            )
    finally:
        model.train(training)


@contextlib.contextmanager
def _different_losses(model: nn.Module) -> Iterator[None]:
    """Scale the last linear layer, so that examples have different losses. Those of an adapter
    begin at 0."""
    linear = [module.weight.data for module in model.modules() if isinstance(module, nn.Linear)]
    weight = next((each for each in reversed(linear) if each.any()), torch.empty(0))
    before = weight.clone()
    weight.mul_(_SCALE)
    try:
        yield
    finally:
        weight.copy_(before)


def composition_of(
    loss: Loss, batch: Any, size: int, *, counted: bool, tolerance: float = _ROUNDED
) -> Composition | None:
    """Return the composition of a loss; None: this batch does not tell. `counted`: the Trainer
    passes num_items_in_batch. `tolerance`: relative difference that rounding explains."""

    def near(one: float, other: float) -> bool:
        return abs(one - other) <= tolerance * max(abs(one), abs(other)) + 1e-6

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
    if items is not None and near(loss(some, 2 * items), whole / 2):
        return Composition.SUM if near(sum(parts), whole) else Composition.WHOLE
    means = {Composition.EXAMPLES: sum(parts) / len(parts)}
    counts = [label_count(single) or 0 for single in singles]
    if len(set(counts)) > 1:
        labels = sum(count * part for count, part in zip(counts, parts, strict=True))
        means[Composition.LABELS] = labels / sum(counts)
    nearest = min(means, key=lambda kind: abs(means[kind] - whole))
    return nearest if near(means[nearest], whole) else Composition.WHOLE


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


def _several_classes(batch: Any) -> bool:
    """Return whether weights of classes would show in a batch; True if its labels are none."""
    labels = _labels(batch)
    if labels is None or labels.is_floating_point():
        return True
    return len(set(labels[labels.ne(-100)].tolist())) > 1


def _labels(batch: Any) -> torch.Tensor | None:
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    return labels if isinstance(labels, torch.Tensor) and labels.ndim > 0 else None


def _rows(batch: Any, size: int) -> list[int]:
    """Return rows to try, of different classes, or with few labels and with many. A row without
    labels is none of them: its mean is NaN."""
    labels = _labels(batch)
    if labels is None:
        return [*range(size)][:_TRIED]
    if labels.ndim == 1 and not labels.is_floating_point():
        values = labels.tolist()
        known = [row for row, value in enumerate(values) if value != -100]
        firsts = {value: row for row, value in reversed([*enumerate(values)])}
        return sorted(known, key=lambda row: firsts[values[row]] != row)[:_TRIED]
    counts = labels.ne(-100).reshape(len(labels), -1).sum(1).tolist()
    order = sorted((row for row in range(len(counts)) if counts[row]), key=counts.__getitem__)
    few = order[: _TRIED // 2]
    return [*few, *order[len(few) :][-_TRIED // 2 :]]


def _usable(value: float) -> bool:
    return abs(value) < float("inf")
