"""Batches: which sequences come together, and how they become tensors.

Effective batches are drawn at random: sequences of like length never meet more often than others,
since that would change what is learnt. Padding is avoided inside a batch instead (packing.py). The
order of an epoch follows from the seed and the epoch's number alone, so a trial that goes on after
a kill needs nothing but these to see the same batches again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.training.models import Inputs
from supermax.training.packing import pack
from supermax.training.tokens import Tokens

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Inputs for each encoder, and targets; NONE where nothing is asked."""

    inputs: tuple[Inputs, ...]
    labels: Tensor
    starts: Tensor
    ends: Tensor


def order(lengths: NDArray[np.int64], size: int, seed: int, epoch: int) -> list[Indices]:
    """Return the batches of an epoch: a random permutation, cut into pieces; the last is smaller
    if need be. In the first epoch the batch with the most tokens comes first, so that what does
    not fit mostly fails early. With micro-batches, or where an encoder is padded, a later batch
    can need more."""
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    shuffled = rng.permutation(len(lengths))
    batches = [shuffled[i : i + size] for i in range(0, len(shuffled), size)]
    if epoch == 0 and batches:
        largest = max(range(len(batches)), key=lambda i: lengths[batches[i]].sum())
        batches.insert(0, batches.pop(largest))
    return batches


def by_length(lengths: NDArray[np.int64], size: int) -> list[Indices]:
    """For evaluation: everything once, longest first."""
    ordered = np.argsort(-lengths, kind="stable")
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def split(batch: Indices, size: int) -> Iterator[Indices]:
    """Micro-batches of an effective batch."""
    for i in range(0, len(batch), size):
        yield batch[i : i + size]


def collate(views: tuple[Tokens, ...], pads: tuple[int, ...], indices: Indices) -> Batch:
    """Tensors of some sequences, padded to the longest of them. Targets are the last view's: the
    encoder whose tokens spans are found in."""
    last = views[-1]
    return Batch(
        tuple(_inputs(view, pad, indices) for view, pad in zip(views, pads, strict=True)),
        torch.from_numpy(last.label[indices].astype(np.int64)),
        torch.from_numpy(last.start[indices].astype(np.int64)),
        torch.from_numpy(last.end[indices].astype(np.int64)),
    )


def packed(
    batch: Batch, views: tuple[Tokens, ...], indices: Indices, packs: Sequence[bool]
) -> Batch:
    """The same batch in fewer rows, for each encoder that takes packed sequences."""
    inputs = list(batch.inputs)
    for i, (view, wanted) in enumerate(zip(views, packs, strict=True)):
        if not wanted:
            continue
        found = pack(view.lengths[indices])
        if found.rows < len(indices):
            inputs[i] = replace(inputs[i], packing=found)
    return replace(batch, inputs=tuple(inputs))


def _inputs(tokens: Tokens, pad: int, indices: Indices) -> Inputs:
    begin = tokens.begin[indices]
    lengths = tokens.begin[indices + 1] - begin
    columns = np.arange(lengths.max())
    mask = columns < lengths[:, None]
    places = np.minimum(begin[:, None] + columns, len(tokens.ids) - 1)
    ids = np.where(mask, tokens.ids[places], pad).astype(np.int64)
    types = (columns >= tokens.second[indices][:, None]) & mask
    return Inputs(
        torch.from_numpy(ids),
        torch.from_numpy(mask.astype(np.int64)),
        torch.from_numpy(types.astype(np.int64)),
    )
