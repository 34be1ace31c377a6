"""Inference over a split, in batches sorted by length: eagerly or with CUDA graphs.

    TokenizedSplit ──▶ batches ──▶ indices, Outputs on the device

Nothing here waits for the device; reading the outputs does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.models.assembly import Model, Outputs
from supermax.training.models.attention import without_cudnn_attention
from supermax.training.models.encoders import prepare_for_length
from supermax.training.steps.batches import Indices, by_length, collate
from supermax.training.steps.epoch_schedule import choose_sizes, count_rounded, smallest_fitting
from supermax.training.steps.execution import Execution, autocast
from supermax.training.steps.gpu_dataset import NO_ROW, GpuDataset
from supermax.training.steps.graph_capture import CaptureBackend, Work
from supermax.training.steps.step_cost_model import cost_of

_MAX_BATCH = 512  # sequences
InferenceOutputs = list[tuple[Indices, Outputs]]
OnProgress = Callable[[int, int], None]
"""Called with the number of sequences that are done, and the number of all."""


def run_inference(
    model: Model,
    data: TokenizedSplit,
    pads: tuple[int, ...],
    execution: Execution,
    on_progress: OnProgress | None = None,
) -> InferenceOutputs:
    """Run inference eagerly. `on_progress` counts sequences that were enqueued on the device."""
    model.eval()
    results: InferenceOutputs = []
    with torch.inference_mode(), without_cudnn_attention():
        for indices in by_length(data.views[-1].lengths, batch_size_of(data, execution)):
            batch = collate(data.views, pads, indices).to(execution.device)
            with autocast(execution):
                results.append((indices, model(*batch.inputs)))
            if on_progress is not None:
                on_progress(sum(len(done) for done, _ in results), len(data.views[-1]))
    return results


def batch_size_of(data: TokenizedSplit, execution: Execution) -> int:
    """Return the number of sequences per batch that `execution.evaluated` allows."""
    longest = int(data.views[-1].lengths.max())
    return int(max(1, min(_MAX_BATCH, execution.evaluated // max(1, longest))))


def prepare_for_lengths(model: Model, shape: tuple[int, ...], device: str) -> None:
    """Compute what depends on the sequence lengths alone, before a capture."""
    for encoder, length in zip(model.encoders, shape, strict=True):
        prepare_for_length(encoder.model, length, device)


@dataclass(frozen=True)
class InferencePlan:
    """Batches and shapes of captured inference over a split."""

    data: TokenizedSplit
    batches: list[Indices]
    """All of one size; the last may be smaller."""
    shape: list[tuple[int, ...]]
    """Padded lengths of each batch, one for each encoder."""
    pays: bool
    """Captured inference is estimated to be faster than eager inference."""


def plan_inference(
    model: Model, data: TokenizedSplit, execution: Execution, passes: int
) -> InferencePlan:
    """Return the plan for `passes` evaluation passes over the split."""
    count = len(data.views[-1])
    size = -(-count // -(-count // batch_size_of(data, execution)))
    batches = by_length(data.views[-1].lengths, size)
    costs = [cost_of(encoder.model) for encoder in model.encoders]
    columns = []
    for view, cost in zip(data.views, costs, strict=True):
        needed = [int(view.lengths[batch].max()) for batch in batches]
        forward = partial(cost.forward, size)
        lengths = choose_sizes(count_rounded(needed, passes), forward, cost.forward_capture)
        columns.append([smallest_fitting(n, lengths) for n in needed])
    shape = list(zip(*columns, strict=True))
    capture = len(set(shape)) * sum(cost.forward_capture for cost in costs)
    launches = passes * len(batches) * sum(cost.eager_forward for cost in costs)
    return InferencePlan(data, batches, shape, pays=launches > capture)


class CapturedInference:
    """Inference over one split with a CUDA graph for each shape.

    A graph reads the weights at their addresses. Training updates them in place, so each pass
    evaluates the current weights without a new capture.
    """

    def __init__(
        self,
        model: Model,
        plan: InferencePlan,
        pads: tuple[int, ...],
        execution: Execution,
        backend: CaptureBackend,
    ) -> None:
        self._model, self._plan = model, plan
        self._execution, self._backend = execution, backend
        self._dataset = GpuDataset(plan.data, pads, execution.device)
        rows = np.full((len(plan.batches), len(plan.batches[0])), NO_ROW)
        for row, batch in zip(rows, plan.batches, strict=True):
            row[: len(batch)] = batch
        self._rows = torch.from_numpy(rows).to(execution.device)
        self._next = torch.zeros(1, dtype=torch.int64, device=execution.device)
        self._captured: dict[tuple[int, ...], tuple[Work, list[Tensor | None]]] = {}

    def __call__(self) -> InferenceOutputs:
        self._model.eval()
        results: InferenceOutputs = []
        with torch.inference_mode():
            for shape in self._plan.shape:
                if shape not in self._captured:
                    self._captured[shape] = self._capture(shape)
            self._next.zero_()
            for indices, shape in zip(self._plan.batches, self._plan.shape, strict=True):
                replay, outputs = self._captured[shape]
                replay()
                # Cloned: the next replay of this graph writes to the same tensors.
                copies = Outputs(*(None if part is None else part.clone() for part in outputs))
                results.append((indices, copies))
        return results

    def _capture(self, shape: tuple[int, ...]) -> tuple[Work, list[Tensor | None]]:
        outputs: list[Tensor | None] = []
        prepare_for_lengths(self._model, shape, self._execution.device)

        def run() -> None:
            outputs[:] = self._outputs(shape)

        def warm_up() -> None:
            self._next.zero_()
            self._outputs(shape, padded=True)

        return self._backend.capture(run, warm_up, "inference"), outputs

    def _outputs(self, shape: tuple[int, ...], *, padded: bool = False) -> list[Tensor | None]:
        rows = self._rows.index_select(0, self._next)[0]
        self._next += 1
        with without_cudnn_attention(), autocast(self._execution):
            outputs = self._model(*self._dataset.batch(rows, shape, padded=padded).inputs)
        return [outputs.classes, outputs.starts, outputs.ends]
