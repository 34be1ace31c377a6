"""Recorded learning curves on which searches are replayed.

TaskSet: text tasks of github.com/releaunifreiburg/DPL (data/taskset), 1,000 configurations each of
an optimizer with eight parameters, 51 epochs. A configuration gets the curve of its nearest
neighbour. LCBench: surrogate of github.com/slds-lmu/yahpo_data (lcbench), a network with seven
parameters on 34 tables, 52 epochs; needs onnxruntime.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

if TYPE_CHECKING:
    from onnxruntime import InferenceSession  # type: ignore[import-not-found]

Params = Mapping[str, object]
_VAL_ACCURACY = 1  # column of the surrogate's output
_REFERENCE = 1000  # configurations from which the best and the median value are taken


@dataclass(frozen=True)
class Table:
    """Curves of one task. Values are losses."""

    name: str
    space: dict[str, BaseDistribution]
    epochs: int
    best: float
    """Lowest loss that a configuration reaches."""
    median: float
    """Lowest loss that half of the configurations reach."""
    curve: Callable[[Params], np.ndarray]
    """Loss after each epoch."""
    defaults: Params
    """Configuration that somebody with experience would begin with."""

    def regret(self, loss: float) -> float:
        """Return the normalised regret: 0 for the best configuration, 1 for the median one."""
        return (loss - self.best) / (self.median - self.best)


_TASKSET = {
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
_TASKSET_DEFAULTS = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
"""Those of Adam. The other parameters have their lowest values."""


_TASKSET_PREFIX = "FixedTextRNNClassification_imdb_"


def names(taskset: Path | None, lcbench: Path | None) -> list[str]:
    """Return the names of all tasks in these folders, without reading their curves."""
    files = sorted(taskset.glob(f"{_TASKSET_PREFIX}*.json")) if taskset else []
    found = [f"taskset-{file.stem.removeprefix(_TASKSET_PREFIX)}" for file in files]
    if lcbench:
        found += [f"lcbench-{task}" for task in _lcbench_fields(lcbench)[0]]
    return found


@functools.cache
def read(name: str, taskset: Path | None, lcbench: Path | None) -> Table:
    """Return the table of a task."""
    family, task = name.split("-", 1)
    if family == "taskset" and taskset:
        return _taskset_table(taskset / f"{_TASKSET_PREFIX}{task}.json")
    if family == "lcbench" and lcbench:
        return _lcbench_table(lcbench, task)
    raise ValueError(f"There is no folder for the task {name}.")


def _taskset_table(file: Path) -> Table:
    rows = json.loads(file.read_text(encoding="utf-8"))
    points = np.array([[_warped(row["hp"][n], _TASKSET[n]) for n in _TASKSET] for row in rows])
    curves = np.array([row["valid"]["loss"] for row in rows], float)
    worst = np.nanmax(curves[np.isfinite(curves)])
    curves = np.where(np.isfinite(curves), curves, worst)
    low, high = points.min(0), points.max(0)
    scaled = (points - low) / (high - low)
    space: dict[str, BaseDistribution] = {
        name: FloatDistribution(float(a), float(b))
        for name, a, b in zip(_TASKSET, low, high, strict=True)
    }

    def curve(params: Params) -> np.ndarray:
        point = (np.array([params[name] for name in _TASKSET], float) - low) / (high - low)
        nearest: np.ndarray = curves[np.argmin(((scaled - point) ** 2).sum(1))]
        return nearest

    lowest = curves.min(1)
    name = f"taskset-{file.stem.removeprefix(_TASKSET_PREFIX)}"
    best, median = float(lowest.min()), float(np.median(lowest))
    defaults = dict(zip(_TASKSET, map(float, low), strict=True))
    defaults |= {n: _warped(value, _TASKSET[n]) for n, value in _TASKSET_DEFAULTS.items()}
    return Table(name, space, curves.shape[1], best, median, curve, defaults)


def _warped(value: float, scale: str) -> float:
    """Return a value on the scale on which TaskSet has drawn it evenly."""
    return float(np.log10(value) if scale == "log" else np.log10(1 - value))


_LCBENCH = (
    "batch_size",
    "learning_rate",
    "momentum",
    "weight_decay",
    "num_layers",
    "max_units",
    "max_dropout",
)
"""Inputs of the surrogate after the epoch, in its order."""


_LCBENCH_DEFAULTS: Params = {
    "batch_size": 128,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "num_layers": 3,
    "max_units": 256,
    "max_dropout": 0.2,
}


def _lcbench_fields(folder: Path) -> tuple[list[str], int, dict[str, dict[str, Any]]]:
    """Return the tasks, the number of epochs, and the hyperparameters by name."""
    config = json.loads((folder / "config_space.json").read_text(encoding="utf-8"))
    fields = {field["name"]: field for field in config["hyperparameters"]}
    epochs, tasks = fields.pop("epoch")["upper"], fields.pop("OpenML_task_id")["choices"]
    return list(tasks), int(epochs), fields


@functools.cache
def _surrogate(folder: Path) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options)


def _lcbench_table(folder: Path, task: str) -> Table:
    model = _surrogate(folder)
    _, epochs, fields = _lcbench_fields(folder)
    codes = json.loads((folder / "encoding.json").read_text(encoding="utf-8"))
    code = codes["OpenML_task_id"][task]
    space = {name: _distribution(field) for name, field in fields.items()}

    def curves(points: Sequence[Params]) -> np.ndarray:
        rows = [
            [epoch, *(point[name] for name in _LCBENCH)]
            for point in points
            for epoch in range(1, epochs + 1)
        ]
        inputs = {"x_cat": np.full((len(rows), 1), code, np.int32)}
        (found,) = model.run(None, {**inputs, "x_cont": np.array(rows, np.float32)})
        accuracy = found[:, _VAL_ACCURACY].reshape(len(points), epochs)
        losses: np.ndarray = 1 - np.clip(accuracy, 0, 100) / 100
        return losses

    rng = np.random.default_rng(0)
    lowest = curves([drawn_evenly(rng, space) for _ in range(_REFERENCE)]).min(1)
    best, median = float(lowest.min()), float(np.median(lowest))
    name, of_one = f"lcbench-{task}", functools.partial(_only, curves)
    return Table(name, space, epochs, best, median, of_one, _LCBENCH_DEFAULTS)


def _only(curves: Callable[[Sequence[Params]], np.ndarray], params: Params) -> np.ndarray:
    """Return the curve of one configuration."""
    curve: np.ndarray = curves([params])[0]
    return curve


def _distribution(field: dict[str, Any]) -> BaseDistribution:
    kind = IntDistribution if field["type"] == "uniform_int" else FloatDistribution
    return kind(field["lower"], field["upper"], log=field["log"])


def drawn_evenly(rng: np.random.Generator, space: Mapping[str, BaseDistribution]) -> Params:
    """Draw a configuration evenly."""
    drawn = {}
    for name, distribution in space.items():
        assert isinstance(distribution, IntDistribution | FloatDistribution)
        low, high = distribution.low, distribution.high
        ends = np.log([low, high]) if distribution.log else np.array([low, high])
        x = rng.uniform(*ends)
        x = np.exp(x) if distribution.log else x
        drawn[name] = round(x) if isinstance(distribution, IntDistribution) else x
    return drawn
