"""Schedule of an epoch, made in advance: sequences, sizes and loss denominators by micro-step.

batches ──schedule_epoch()──▶ EpochBatches;  needed sizes ──choose_sizes()──▶ sizes to capture

CUDA graphs need fixed shapes. All micro-steps therefore have the same number of sequences, filled
up with NO_ROW, and their sizes (packed rows, or padded length) are rounded up to a few that are
captured. Nothing is random here: the schedule follows from the batches, so a resumed trial has the
same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.data.tokens import NONE, Tokens
from supermax.training.models.packing import pack_sequences
from supermax.training.optim.losses import MIN_DENOMINATOR
from supermax.training.steps.batches import Indices
from supermax.training.steps.gpu_dataset import NO_ROW

_ROUND = 8  # padded lengths are multiples of this


@dataclass(frozen=True)
class EpochBatches:
    """Micro-batches of an epoch, computed in advance for captured steps."""

    rows: Indices
    """[micro-steps, size]: sequences of the split; NO_ROW where a batch has fewer."""
    starts: Indices
    """[micro-steps, encoders, size]: start of each sequence in the packed rows, NO_ROW for none;
    0 where sequences are not packed."""
    needed: Indices
    """[micro-steps, encoders]: number of packed rows; without packing, the longest sequence."""
    denominators: NDArray[np.float32]
    """[micro-steps, 2]: denominators of the class losses and of the span losses."""
    first: Indices
    """[updates + 1]: first micro-step of each update, and at the end their number."""


def schedule_epoch(
    batches: Sequence[Indices],
    data: TokenizedSplit,
    size: int,
    weights: NDArray[np.float32] | None,
    packed: Sequence[int | None],
) -> EpochBatches:
    """Return the schedule of an epoch with `size` sequences per micro-step.

    `weights` are those of the classes, or of the labels. `packed` is the length of packed rows
    for each encoder; None where its sequences are padded instead.
    """
    counts = [-(-len(batch) // size) for batch in batches]
    first = np.concatenate([[0], np.cumsum(counts)])
    rows = np.full((int(first[-1]), size), NO_ROW, dtype=np.int64)
    for batch, at, times in zip(batches, first, counts, strict=False):
        filled = np.full(times * size, NO_ROW, dtype=np.int64)
        filled[: len(batch)] = data.rows(batch)
        rows[at : at + times] = filled.reshape(times, size)
    denominators = np.repeat(_denominators(batches, data, weights), counts, axis=0)
    starts = np.zeros((len(rows), len(data.views), size), dtype=np.int64)
    needed = np.zeros((len(rows), len(data.views)), dtype=np.int64)
    for e, (view, length) in enumerate(zip(data.views, packed, strict=True)):
        lengths = np.where(rows == NO_ROW, 0, view.lengths[rows])
        if length is None:
            needed[:, e] = lengths.max(axis=1)
            continue
        for i, of_step in enumerate(lengths):
            starts[i, e], needed[i, e] = pack_sequences(of_step, length)
        starts[:, e][rows == NO_ROW] = NO_ROW
    return EpochBatches(rows, starts, needed, denominators, first)


def _denominators(
    batches: Sequence[Indices], data: TokenizedSplit, weights: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Return `losses.class_denominator` and `span_denominator` of all batches [batches, 2]."""
    every = data.rows(np.concatenate(batches))
    begins = np.cumsum([0, *(len(batch) for batch in batches)])[:-1]
    known, starts = _known(data.views[-1], every, weights), data.views[-1].start[every]
    sums = [np.add.reduceat(part, begins) for part in (known, (starts != NONE).astype(float))]
    found: NDArray[np.float32] = np.maximum(np.stack(sums, axis=1), MIN_DENOMINATOR).astype(
        np.float32
    )
    return found


def _known(
    tokens: Tokens, rows: Indices, weights: NDArray[np.float32] | None
) -> NDArray[np.float64]:
    """Return the weight of each sequence's label, or the sum over the classes of its tokens."""
    labels = tokens.tags_of(rows) if len(tokens.tag) else tokens.label[rows]
    if labels.dtype.kind == "f":  # a number or a set of labels, which counts without weights
        is_known = ~np.isnan(labels)
        each = is_known if is_known.ndim == 1 else is_known.all(axis=1)
        return np.asarray(each, dtype=np.float64)
    known = np.asarray(labels != NONE, dtype=np.float64)
    if weights is not None:
        known *= weights[np.maximum(labels, 0)]
    if not len(tokens.tag):
        return known
    begins = np.cumsum([0, *tokens.lengths[rows]])[:-1]
    return np.asarray(np.add.reduceat(known, begins))


def choose_sizes(
    needed: Mapping[int, int], seconds: Callable[[int], float], capture: float
) -> list[int]:
    """Return the sizes to capture, ascending, such that the total time is minimal.

    A batch uses the smallest captured size that is large enough: more sizes mean less padding and
    more captures. `needed`: number of batches by size; `seconds`: time of a batch of a size;
    `capture`: seconds to capture one size. Dynamic programming over the sorted sizes.
    """
    sizes = sorted(needed)
    times = [0, *accumulate(needed[size] for size in sizes)]
    # costs[end]: least time of all batches up to sizes[end - 1], which is captured;
    # previous[end]: number of sizes up to the one captured before it.
    costs, previous = [0.0], [0]
    for end, size in enumerate(sizes, 1):
        each = seconds(size)
        options = [costs[b] + capture + each * (times[end] - times[b]) for b in range(end)]
        previous.append(min(range(end), key=options.__getitem__))
        costs.append(options[previous[end]])
    chosen, end = [], len(sizes)
    while end:
        chosen.append(sizes[end - 1])
        end = previous[end]
    return chosen[::-1]


def count_rounded(needed: Sequence[int], times: int = 1) -> Counter[int]:
    """Return how often each padded length occurs if the batches are run `times` times.

    Lengths are rounded up, but not beyond the longest: an encoder may have no positions for more.
    """
    longest = max(needed)
    counts = Counter(min(-(-n // _ROUND) * _ROUND, longest) for n in needed)
    return Counter({length: times * count for length, count in counts.items()})


def smallest_fitting(needed: int, sizes: Sequence[int]) -> int:
    """Return the smallest of the ascending sizes that is at least `needed`."""
    return next(size for size in sizes if size >= needed)
