"""What a model makes of a split's sequences, in batches of like length: as they come, or recorded.

    Data ──▶ batches ──▶ indices, Outputs on the device

Nobody waits for the device here; who reads the outputs does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from supermax.training.attention import unplanned
from supermax.training.batches import Indices, by_length, collate
from supermax.training.costs import cost_of
from supermax.training.encoders import know_width
from supermax.training.models import Model, Outputs
from supermax.training.recording import Recorder, Work
from supermax.training.resident import NOBODY, Resident
from supermax.training.steps import Execution, autocast, on
from supermax.training.timetable import chosen, rounded, widened

if TYPE_CHECKING:
    from supermax.training.prepare import Data

_AT_ONCE = 512
Looks = list[tuple[Indices, Outputs]]
Told = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


def look(
    model: Model,
    data: Data,
    pads: tuple[int, ...],
    execution: Execution,
    told: Told | None = None,
) -> Looks:
    """Run one batch after the other, as PyTorch does. `told` hears how many sequences were given
    to the device, and of how many."""
    model.eval()
    found: Looks = []
    with torch.inference_mode(), unplanned():
        for indices in by_length(data.views[-1].lengths, size_of(data, execution)):
            batch = on(collate(data.views, pads, indices), execution.device)
            with autocast(execution):
                found.append((indices, model(*batch.inputs)))
            if told is not None:
                told(sum(len(each) for each, _ in found), len(data.views[-1]))
    return found


def size_of(data: Data, execution: Execution) -> int:
    """Sequences at a time."""
    longest = int(data.views[-1].lengths.max())
    return int(max(1, min(_AT_ONCE, execution.evaluated // max(1, longest))))


def know_widths(model: Model, wide: tuple[int, ...], device: str) -> None:
    """Before something of these widths is recorded."""
    for encoder, width in zip(model.encoders, wide, strict=True):
        know_width(encoder.model, width, device)


@dataclass(frozen=True)
class Layout:
    """How a split is looked at where that is recorded."""

    data: Data
    batches: list[Indices]
    """All of one size, as nearly as may be."""
    wide: list[tuple[int, ...]]
    """Of each batch, for each encoder."""
    pays: bool
    """It is quicker than to look as it comes."""


def laid_out(model: Model, data: Data, execution: Execution, passes: int) -> Layout:
    """For so many passes over the split."""
    count = len(data.views[-1])
    size = -(-count // -(-count // size_of(data, execution)))
    batches = by_length(data.views[-1].lengths, size)
    costs = [cost_of(encoder.model) for encoder in model.encoders]  # type: ignore[arg-type]
    columns = []
    for view, cost in zip(data.views, costs, strict=True):
        needed = [int(view.lengths[batch].max()) for batch in batches]
        look = partial(cost.look, size)
        widths = chosen(rounded(needed, passes), look, cost.recording_looks)
        columns.append([widened(n, widths) for n in needed])
    wide = list(zip(*columns, strict=True))
    recording = len(set(wide)) * sum(cost.recording_looks for cost in costs)
    asking = passes * len(batches) * sum(cost.asking for cost in costs)
    return Layout(data, batches, wide, pays=asking > recording)


class RecordedLook:
    """Passes over one split, recorded for each width. Whatever weights the model has are looked
    at: a recording reads them where they are."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        pads: tuple[int, ...],
        execution: Execution,
        recorder: Recorder,
    ) -> None:
        self._model, self._layout = model, layout
        self._execution, self._recorder = execution, recorder
        self._resident = Resident(layout.data, pads, execution.device)
        rows = np.full((len(layout.batches), len(layout.batches[0])), NOBODY)
        for row, batch in zip(rows, layout.batches, strict=True):
            row[: len(batch)] = batch
        self._rows = torch.from_numpy(rows).to(execution.device)
        self._next = torch.zeros(1, dtype=torch.int64, device=execution.device)
        self._recorded: dict[tuple[int, ...], tuple[Work, list[Tensor | None]]] = {}

    def __call__(self) -> Looks:
        self._model.eval()
        found: Looks = []
        with torch.inference_mode():
            for wide in self._layout.wide:
                if wide not in self._recorded:
                    self._recorded[wide] = self._record(wide)
            self._next.zero_()
            for indices, wide in zip(self._layout.batches, self._layout.wide, strict=True):
                replay, outputs = self._recorded[wide]
                replay()
                # Cloned, since the next replay writes to the same place.
                kept = Outputs(*(None if part is None else part.clone() for part in outputs))
                found.append((indices, kept))
        return found

    def _record(self, wide: tuple[int, ...]) -> tuple[Work, list[Tensor | None]]:
        outputs: list[Tensor | None] = []
        know_widths(self._model, wide, self._execution.device)

        def run() -> None:
            outputs[:] = self._outputs(wide)

        def rehearse() -> None:
            self._next.zero_()
            self._outputs(wide, padded=True)

        return self._recorder.record(run, rehearse, "look"), outputs

    def _outputs(self, wide: tuple[int, ...], *, padded: bool = False) -> list[Tensor | None]:
        rows = self._rows.index_select(0, self._next)[0]
        self._next += 1
        with unplanned(), autocast(self._execution):
            found = self._model(*self._resident.batch(rows, wide, padded=padded).inputs)
        return [found.classes, found.starts, found.ends]
