"""An epoch laid out beforehand: which sequences each micro-step takes, in which shape, and what
its losses are divided by. All micro-steps have one number of sequences, so that each can be
captured.

batches ──timetable()──▶ Timetable;  needed sizes ──chosen()──▶ the few that are captured
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from supermax.training.losses import LEAST
from supermax.training.packing import place
from supermax.training.resident import NOBODY
from supermax.training.tokens import NONE

if TYPE_CHECKING:
    from supermax.training.prepare import Data

_ROUND = 8
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Timetable:
    rows: Indices
    """[micro-steps, size]: sequences; NOBODY where a batch has fewer."""
    starts: Indices
    """[micro-steps, encoders, size]: where each begins in packed rows, NOBODY for none; 0 where
    sequences are not packed."""
    needed: Indices
    """[micro-steps, encoders]: rows, where sequences are packed; else the longest sequence."""
    shares: NDArray[np.float32]
    """[micro-steps, 2]: what the losses of classes and of spans are divided by."""
    first: Indices
    """[updates + 1]: the micro-step each update begins with."""


def timetable(
    batches: Sequence[Indices],
    data: Data,
    size: int,
    weights: NDArray[Any] | None,
    packed: Sequence[int | None],
) -> Timetable:
    """`size` sequences a micro-step; `weights` are those of the classes; `packed` is for each
    encoder the width of packed rows, None where sequences are padded."""
    counts = [-(-len(batch) // size) for batch in batches]
    first = np.concatenate([[0], np.cumsum(counts)])
    rows = np.full((int(first[-1]), size), NOBODY, dtype=np.int64)
    for batch, at, times in zip(batches, first, counts, strict=False):
        wide = np.full(times * size, NOBODY, dtype=np.int64)
        wide[: len(batch)] = data.rows(batch)
        rows[at : at + times] = wide.reshape(times, size)
    shares = np.repeat(_shares(batches, data, weights), counts, axis=0)
    starts = np.zeros((len(rows), len(data.views), size), dtype=np.int64)
    needed = np.zeros((len(rows), len(data.views)), dtype=np.int64)
    for e, (view, width) in enumerate(zip(data.views, packed, strict=True)):
        lengths = np.where(rows == NOBODY, 0, view.lengths[rows])
        if width is None:
            needed[:, e] = lengths.max(axis=1)
            continue
        for i, some in enumerate(lengths):
            starts[i, e], needed[i, e] = place(some, width)
        starts[:, e][rows == NOBODY] = NOBODY
    return Timetable(rows, starts, needed, shares, first)


def _shares(
    batches: Sequence[Indices], data: Data, weights: NDArray[Any] | None
) -> NDArray[np.float32]:
    """As `losses.class_normaliser` and `span_normaliser` have them, for all batches at once."""
    every = data.rows(np.concatenate(batches))
    begins = np.cumsum([0, *(len(batch) for batch in batches)])[:-1]
    labels, starts = data.views[-1].label[every], data.views[-1].start[every]
    known = (labels != NONE).astype(np.float64)
    if weights is not None:
        known *= weights[np.maximum(labels, 0)]
    sums = [np.add.reduceat(part, begins) for part in (known, (starts != NONE).astype(float))]
    found: NDArray[np.float32] = np.maximum(np.stack(sums, axis=1), LEAST).astype(np.float32)
    return found


def chosen(
    needed: Mapping[int, int], seconds: Callable[[int], float], recording: float
) -> list[int]:
    """The widths to record, of which each batch takes the next that is wide enough: so few that
    recording them (`recording` seconds each) does not cost more than padding. `needed`: how often
    each width comes; `seconds`: what a batch of a width takes."""
    widths = sorted(needed)
    times = [0, *accumulate(needed[width] for width in widths)]
    costs, before = [0.0], [0]
    for end, width in enumerate(widths, 1):
        each = seconds(width)
        options = [costs[b] + recording + each * (times[end] - times[b]) for b in range(end)]
        before.append(min(range(end), key=options.__getitem__))
        costs.append(options[before[end]])
    found, end = [], len(widths)
    while end:
        found.append(widths[end - 1])
        end = before[end]
    return found[::-1]


def rounded(needed: Sequence[int], times: int = 1) -> Counter[int]:
    """How often each width comes if batches that need so many come so many `times`: rounded up,
    but not beyond the longest, since there may be no position for more."""
    longest = max(needed)
    counts = Counter(min(-(-n // _ROUND) * _ROUND, longest) for n in needed)
    return Counter({width: times * count for width, count in counts.items()})


def widened(needed: int, widths: Sequence[int]) -> int:
    """The narrowest of the widths that holds it."""
    return next(width for width in widths if width >= needed)
