"""Objectives of a search: metrics of its agent, and costs of the model."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.training.config import with_decoding
from supermax.training.eval.evaluate import evaluate_model
from supermax.training.eval.metrics import check_metric
from supermax.training.loop import Result
from supermax.training.models.adapters import merged_in_place
from supermax.training.models.assembly import count
from supermax.training.prepare import Prepared


def _model_size(prepared: Prepared, _: Result | None) -> float:
    """Return the number of parameters."""
    return float(count(prepared.model))


def _latency(prepared: Prepared, result: Result) -> float:
    """Return milliseconds of inference for each validation example, batched as in `predict`."""
    model, data, pads = prepared.model, prepared.validation, prepared.pads
    config, decoding = prepared.config, result.evaluation.decoding
    if decoding is not None:
        config = with_decoding(config, decoding)
    with merged_in_place(model):
        started = time.perf_counter()
        evaluate_model(model, config, data, pads, prepared.execution, result.evaluation.threshold)
        seconds = time.perf_counter() - started
    return seconds * 1e3 / max(1, len(prepared.validation.examples))


def _peak_memory(prepared: Prepared, _: Result | None) -> float:
    """Return peak bytes allocated on the GPU, or the peak resident set on a CPU."""
    if prepared.execution.device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated(prepared.execution.device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


COSTS: dict[str, Callable[[Prepared, Result], float]] = {
    "model_size": _model_size,
    "latency": _latency,
    "peak_memory": _peak_memory,
}


AT_THE_END = ("latency",)
"""Costs that are measured once, after the training."""


def values_so_far(
    names: Sequence[str], prepared: Prepared, metrics: Mapping[str, float]
) -> list[float] | None:
    """Return the values of the objectives after an epoch; None: one is only known at the end."""
    early = {"model_size": _model_size, "peak_memory": _peak_memory}
    if any(name in AT_THE_END for name in names):
        return None
    return [early[name](prepared, None) if name in early else metrics[name] for name in names]


def check_objectives(
    agent: str, names: Sequence[str], classes: int = 2
) -> tuple[list[str], list[str]]:
    """Return the objectives of a search, by default the agent's own metric, and their directions.

    The first must be a metric, as it decides which epoch is the best. Raises one UserError with
    all mistakes.
    """
    chosen = list(names) or [agent_of(agent).metric]
    mistakes: list[str] = []
    directions: list[str] = []
    for name in chosen:
        try:
            higher = name not in COSTS and check_metric(name, agent, classes).higher
            directions.append("maximize" if higher else "minimize")
        except UserError as error:
            mistakes.append(str(error))
    if chosen[0] in COSTS:
        mistakes.append(f"The first objective must be a metric, not {chosen[0]!r}.")
    if len(set(chosen)) < len(chosen):
        mistakes.append(f"An objective is named twice: {', '.join(chosen)}.")
    if mistakes:
        raise UserError("\n".join(mistakes))
    return chosen, directions


def versions_of(names: Sequence[str]) -> dict[str, int]:
    """Return the version of each metric's definition among the objectives."""
    return {name: check_metric(name).version for name in names if name not in COSTS}


def values_of(names: Sequence[str], prepared: Prepared, result: Result) -> list[float]:
    """Return the values of the objectives of a trained trial."""
    return [
        COSTS[name](prepared, result) if name in COSTS else result.metrics[name] for name in names
    ]
