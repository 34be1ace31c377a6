"""Bootstrap intervals of metrics over the rows of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DRAWS = 2_000
FEWEST_ROWS = 10
"""Rows below which a bootstrap is not meaningful."""
_SEED = 0  # fixed, so that two reports of one study agree
Floats = npt.NDArray[np.float64]


def interval(
    confusion: Sequence[Sequence[int]], metric: str, value: float
) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a metric over rows; None: as `resampled`."""
    found = resampled(confusion, metric, value)
    if found is None:
        return None
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def resampled(confusion: Sequence[Sequence[int]], metric: str, value: float) -> Floats | None:
    """Return values of a metric on bootstrap samples of the rows; None if `value` does not follow
    from the matrix, or there are too few rows."""
    counts = np.array(confusion, dtype=np.int64)
    total = int(counts.sum())
    if metric not in _METRICS or total < FEWEST_ROWS:
        return None
    if not np.isclose(_of(counts[None], metric), value):
        return None
    drawn = np.random.default_rng(_SEED).multinomial(total, (counts / total).ravel(), DRAWS)
    return _of(drawn.reshape(DRAWS, *counts.shape), metric)


def _of(counts: npt.NDArray[np.int64], metric: str) -> Floats:
    hit = np.diagonal(counts, axis1=1, axis2=2)
    if metric == "accuracy":
        return np.asarray(hit.sum(1) / counts.sum((1, 2)))
    both = counts.sum(1) + counts.sum(2)  # predicted and true rows of each class
    f1 = np.divide(2 * hit, both, out=np.zeros(both.shape), where=both > 0)
    return np.asarray(f1.sum(1) / (both > 0).sum(1))  # over the classes that occur


_METRICS = ("accuracy", "macro_f1")
