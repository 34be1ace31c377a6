"""Batches: which sequences come together, and how they become tensors.

The order of an epoch follows from the seed and the epoch's number alone, so a trial that goes on
after a kill needs nothing but these to see the same batches again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.training.models import Inputs
from supermax.training.tokens import Tokens

_POOL = 50  # batches whose sequences are sorted by length together
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Inputs for each encoder, and targets; NONE where nothing is asked."""

    inputs: tuple[Inputs, ...]
    labels: Tensor
    starts: Tensor
    ends: Tensor


def order(lengths: NDArray[np.int64], size: int, seed: int, epoch: int) -> list[Indices]:
    """The batches of an epoch: shuffled, with sequences of like length together, one of them
    smaller if need be. The longest comes first: what does not fit fails at once, and memory is
    taken in one piece."""
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    shuffled = rng.permutation(len(lengths))
    pool = size * _POOL
    grouped = np.concatenate(
        [
            part[np.argsort(-lengths[part], kind="stable")]
            for part in (shuffled[i : i + pool] for i in range(0, len(shuffled), pool))
        ]
        or [shuffled]
    )
    batches = [grouped[i : i + size] for i in range(0, len(grouped), size)]
    ordered = [batches[place] for place in rng.permutation(len(batches))]
    longest = max(range(len(ordered)), key=lambda i: lengths[ordered[i]].max(), default=0)
    return [*ordered[longest : longest + 1], *ordered[:longest], *ordered[longest + 1 :]]


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
