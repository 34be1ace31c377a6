"""Slices of a batch: nested dicts, lists and tensors whose first dimension counts the examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class NotSliceable(ValueError):
    """A batch has parts that do not belong to one example each."""


def examples_in(batch: Any) -> int:
    """Return the number of examples of a batch. Raise NotSliceable if its tensors disagree."""
    sizes = {tensor.shape[0] for tensor in _tensors(batch) if tensor.ndim > 0}
    if len(sizes) != 1:
        raise NotSliceable(
            f"tensors of a batch have {sorted(sizes)} rows" if sizes else "a batch has no tensors"
        )
    return int(sizes.pop())


def slice_of(batch: Any, rows: slice | Sequence[int], size: int) -> Any:
    """Return some rows of a batch of `size` examples. What is no tensor and has not one entry per
    example stays as it is."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.ndim == 0 else batch[rows]
    if isinstance(batch, Mapping):
        return {key: slice_of(value, rows, size) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        if any(True for _ in _tensors(batch)):
            return type(batch)(slice_of(value, rows, size) for value in batch)
        if len(batch) == size:
            picked = batch[rows] if isinstance(rows, slice) else [batch[i] for i in rows]
            return type(batch)(picked)
    return batch


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for value in batch.values() for tensor in _tensors(value)]
    if isinstance(batch, (list, tuple)):
        return [tensor for value in batch for tensor in _tensors(value)]
    return []
