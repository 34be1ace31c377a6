"""Metrics of predicted numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError

Floats = npt.NDArray[np.float64]
_ROUNDING = 1e-12
"""Relative spread below which numbers are the same up to rounding."""


def number_metrics(true: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Return every metric of numbers.

    Equal predictions have no order: their correlations are 0. Correlations and R² are NaN if all
    true numbers are the same, and all metrics are NaN if a prediction is not finite.
    """
    y, p = (np.asarray(each, dtype=np.float64) for each in (true, predicted))
    if len(y) == 0:
        raise UserError("There are no examples to measure the numbers on.")
    if not np.isfinite(p).all():
        return dict.fromkeys(("spearman", "pearson", "rmse", "r2"), float("nan"))
    squares = float(((y - p) ** 2).sum())
    spread = float(((y - y.mean()) ** 2).sum())
    return {
        "spearman": _correlation(_ranks(_level(y)), _ranks(_level(p))),
        "pearson": _correlation(_level(y), _level(p)),
        "rmse": float(np.sqrt(squares / len(y))),
        "r2": float("nan") if _is_constant(y) else 1 - squares / spread,
    }


def _correlation(true: Floats, predicted: Floats) -> float:
    if np.ptp(true) == 0:
        return float("nan")
    if np.ptp(predicted) == 0:
        return 0.0
    a, b = (each - each.mean() for each in (true, predicted))
    value = (a / np.linalg.norm(a)) @ (b / np.linalg.norm(b))
    return float(np.clip(value, -1, 1))


def _level(values: Floats) -> Floats:
    """Return zeros for values that differ by rounding alone."""
    return np.zeros_like(values) if _is_constant(values) else values


def _is_constant(values: Floats) -> bool:
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean[inverse]
