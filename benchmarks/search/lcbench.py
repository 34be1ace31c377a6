"""LCBench: surrogate of github.com/slds-lmu/yahpo_data (lcbench).

A network with seven parameters on 34 tables, 52 epochs. Needs onnxruntime.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from tables import Params, Table, drawn_evenly

if TYPE_CHECKING:
    from onnxruntime import InferenceSession  # type: ignore[import-not-found]

_VAL_ACCURACY = 1  # column of the surrogate's output
_REFERENCE = 1000  # configurations from which the best and the median value are taken

_INPUTS = (
    "batch_size",
    "learning_rate",
    "momentum",
    "weight_decay",
    "num_layers",
    "max_units",
    "max_dropout",
)
"""Inputs of the surrogate after the epoch, in its order."""


_DEFAULTS: Params = {
    "batch_size": 128,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "num_layers": 3,
    "max_units": 256,
    "max_dropout": 0.2,
}


def _fields(folder: Path) -> tuple[list[str], int, dict[str, dict[str, Any]]]:
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


def names(folder: Path) -> list[str]:
    """Return the names of the tasks."""
    return _fields(folder)[0]


def read(folder: Path, task: str) -> Table:
    """Return the table of a task."""
    model = _surrogate(folder)
    _, epochs, fields = _fields(folder)
    codes = json.loads((folder / "encoding.json").read_text(encoding="utf-8"))
    code = codes["OpenML_task_id"][task]
    space = {name: _distribution(field) for name, field in fields.items()}

    def curves(points: Sequence[Params]) -> np.ndarray:
        rows = [
            [epoch, *(point[name] for name in _INPUTS)]
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
    return Table(name, space, epochs, best, median, of_one, _DEFAULTS)


def _only(curves: Callable[[Sequence[Params]], np.ndarray], params: Params) -> np.ndarray:
    """Return the curve of one configuration."""
    curve: np.ndarray = curves([params])[0]
    return curve


def _distribution(field: dict[str, Any]) -> BaseDistribution:
    kind = IntDistribution if field["type"] == "uniform_int" else FloatDistribution
    return kind(field["lower"], field["upper"], log=field["log"])
