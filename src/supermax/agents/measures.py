"""What a trial can be judged by: every metric of its agent, and what it costs to use the model."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence

import torch

from supermax.errors import UserError
from supermax.training.evaluate import evaluate_model
from supermax.training.loop import Result
from supermax.training.metrics import check_metric
from supermax.training.models import count
from supermax.training.prepare import DEFAULT_METRIC, Prepared


def _size(prepared: Prepared, _: Result) -> float:
    return float(count(prepared.model))


def _latency(prepared: Prepared, _: Result) -> float:
    """Milliseconds an example of the validation split takes, batched as for a prediction."""
    model, data, pads = prepared.model, prepared.validation, prepared.pads
    started = time.perf_counter()
    evaluate_model(model, prepared.config, data, pads, prepared.execution)
    return (time.perf_counter() - started) * 1e3 / max(1, len(prepared.validation.examples))


def _peak_memory(prepared: Prepared, _: Result) -> float:
    """Bytes: of the device where there is one, otherwise resident."""
    if prepared.execution.device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated(prepared.execution.device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


COSTS: dict[str, Callable[[Prepared, Result], float]] = {
    "model_size": _size,
    "latency": _latency,
    "peak_memory": _peak_memory,
}


def check_objectives(
    agent: str, names: Sequence[str], classes: int = 2
) -> tuple[list[str], list[str]]:
    """The objectives of a search, the agent's own metric by default, and their directions. The
    first must be a metric: it decides which epoch is the best. Raises UserError with all that is
    wrong."""
    chosen = list(names) or [DEFAULT_METRIC[agent]]
    wrong: list[str] = []
    directions: list[str] = []
    for name in chosen:
        try:
            higher = name not in COSTS and check_metric(name, agent, classes).higher
            directions.append("maximize" if higher else "minimize")
        except UserError as error:
            wrong.append(str(error))
    if chosen[0] in COSTS:
        wrong.append(f"The first objective must be a metric, not {chosen[0]!r}.")
    if len(set(chosen)) < len(chosen):
        wrong.append(f"An objective is named twice: {', '.join(chosen)}.")
    if wrong:
        raise UserError("\n".join(wrong))
    return chosen, directions


def versions_of(names: Sequence[str]) -> dict[str, int]:
    """Return the version of each metric's definition among the objectives."""
    return {name: check_metric(name).version for name in names if name not in COSTS}


def values_of(names: Sequence[str], prepared: Prepared, result: Result) -> list[float]:
    return [
        COSTS[name](prepared, result) if name in COSTS else result.metrics[name] for name in names
    ]
