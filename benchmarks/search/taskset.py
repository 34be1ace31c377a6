"""TaskSet: text tasks of github.com/releaunifreiburg/DPL (data/taskset).

1,000 configurations each of an optimizer with eight parameters, 51 epochs. A configuration gets
the curve of its nearest neighbour.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution
from tables import Params, Table

_SCALES = {
    "learning_rate": "log",
    "beta1": "flipped",
    "beta2": "flipped",
    "epsilon": "log",
    "l1": "log",
    "l2": "log",
    "linear_decay": "log",
    "exponential_decay": "log",
}
"""Scales on which the parameters were drawn evenly."""
_DEFAULTS = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
"""Those of Adam. The other parameters have their lowest values."""

_PREFIX = "FixedTextRNNClassification_imdb_"


def names(folder: Path) -> list[str]:
    """Return the names of the tasks in a folder, without reading their curves."""
    return [file.stem.removeprefix(_PREFIX) for file in sorted(folder.glob(f"{_PREFIX}*.json"))]


def read(folder: Path, task: str) -> Table:
    """Return the table of a task."""
    rows = json.loads((folder / f"{_PREFIX}{task}.json").read_text(encoding="utf-8"))
    points = np.array([[_warped(row["hp"][n], _SCALES[n]) for n in _SCALES] for row in rows])
    curves = np.array([row["valid"]["loss"] for row in rows], float)
    worst = np.nanmax(curves[np.isfinite(curves)])
    curves = np.where(np.isfinite(curves), curves, worst)
    low, high = points.min(0), points.max(0)
    scaled = (points - low) / (high - low)
    space: dict[str, BaseDistribution] = {
        name: FloatDistribution(float(a), float(b))
        for name, a, b in zip(_SCALES, low, high, strict=True)
    }

    def curve(params: Params) -> np.ndarray:
        point = (np.array([params[name] for name in _SCALES], float) - low) / (high - low)
        nearest: np.ndarray = curves[np.argmin(((scaled - point) ** 2).sum(1))]
        return nearest

    lowest = curves.min(1)
    best, median = float(lowest.min()), float(np.median(lowest))
    defaults = dict(zip(_SCALES, map(float, low), strict=True))
    defaults |= {n: _warped(value, _SCALES[n]) for n, value in _DEFAULTS.items()}
    return Table(f"taskset-{task}", space, curves.shape[1], best, median, curve, defaults)


def _warped(value: float, scale: str) -> float:
    """Return a value on the scale on which TaskSet has drawn it evenly."""
    return float(np.log10(value) if scale == "log" else np.log10(1 - value))
