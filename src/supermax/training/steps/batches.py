"""Batches: the order of sequences in an epoch, and collation into tensors.

Effective batches are random: sequences of similar length are not grouped, since that would
change what is learned. Padding is avoided by packing inside a batch instead (packing.py). The
order of an epoch follows from seed, epoch number, batch size and data, so a resumed trial sees
the same batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.training.data.tokenized_split import as_targets
from supermax.training.data.tokens import NONE, Tokens
from supermax.training.models.assembly import Inputs
from supermax.training.models.packing import pack

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Inputs of each encoder, and targets [batch]; -100 (`ignore_index`), or NaN among numbers,
    for an example without a target. Sets of labels are 0 and 1 [batch, labels]. The labels of
    entity examples are [batch, length], -100 for a token without a class."""

    inputs: tuple[Inputs, ...]
    labels: Tensor
    starts: Tensor
    ends: Tensor

    def to(self, device: str) -> Batch:
        targets = (t.to(device, non_blocking=True) for t in (self.labels, self.starts, self.ends))
        return Batch(tuple(inputs.to(device) for inputs in self.inputs), *targets)


def order(lengths: NDArray[np.int64], size: int, seed: int, epoch: int) -> list[Indices]:
    """Return the batches of an epoch: a random permutation, split; the last may be smaller.

    In the first epoch the batch with the most tokens comes first, so that running out of memory
    mostly happens early. With micro-batches, or where an encoder is padded, a later batch can
    still need more.
    """
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    shuffled = rng.permutation(len(lengths))
    batches = [shuffled[i : i + size] for i in range(0, len(shuffled), size)]
    if epoch == 0 and batches:
        largest = max(range(len(batches)), key=lambda i: lengths[batches[i]].sum())
        batches.insert(0, batches.pop(largest))
    return batches


def by_length(lengths: NDArray[np.int64], size: int) -> list[Indices]:
    """Return evaluation batches: every sequence once, sorted by length, longest first."""
    ordered = np.argsort(-lengths, kind="stable")
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def micro_batches(batch: Indices, size: int) -> Iterator[Indices]:
    for i in range(0, len(batch), size):
        yield batch[i : i + size]


def collate(views: tuple[Tokens, ...], pads: tuple[int, ...], indices: Indices) -> Batch:
    """Return a batch on the CPU, padded to its longest sequence. Targets are those of the last
    view: spans are positions in the tokens of the last encoder."""
    last = views[-1]
    return Batch(
        tuple(_inputs(view, pad, indices) for view, pad in zip(views, pads, strict=True)),
        as_targets(_tags(last, indices) if len(last.tag) else last.label[indices]),
        torch.from_numpy(last.start[indices].astype(np.int64)),
        torch.from_numpy(last.end[indices].astype(np.int64)),
    )


def _tags(tokens: Tokens, indices: Indices) -> Indices:
    """Return the classes of tokens [batch, length]; -100 for padding."""
    begin = tokens.begin[indices]
    lengths = tokens.begin[indices + 1] - begin
    columns = np.arange(lengths.max())
    places = np.minimum(begin[:, None] + columns, len(tokens.tag) - 1)
    return np.where(columns < lengths[:, None], tokens.tag[places], NONE)


def packed(
    batch: Batch, views: tuple[Tokens, ...], indices: Indices, packs: Sequence[bool]
) -> Batch:
    """Return the batch with its sequences packed, for each encoder in `packs` that saves rows."""
    inputs = list(batch.inputs)
    for i, (view, can_pack) in enumerate(zip(views, packs, strict=True)):
        if not can_pack:
            continue
        packing = pack(view.lengths[indices])
        if packing.rows < len(indices):
            inputs[i] = replace(inputs[i], packing=packing)
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
