"""What a model makes of a split's sequences, in batches of like length: as they come, or recorded.

    Data ──▶ batches ──▶ indices, Outputs on the device

Nobody waits for the device here; who reads the outputs does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from supermax.training.batches import Indices, by_length, collate
from supermax.training.compiling import uncompiled
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


def look(model: Model, data: Data, pads: tuple[int, ...], execution: Execution) -> Looks:
    """One batch after the other, as PyTorch runs them."""
    model.eval()
    found: Looks = []
    with torch.inference_mode(), uncompiled():
        for indices in by_length(data.views[-1].lengths, size_of(data, execution)):
            batch = on(collate(data.views, pads, indices), execution.device)
            with autocast(execution):
                found.append((indices, model(*batch.inputs)))
    return found


def size_of(data: Data, execution: Execution) -> int:
    """Sequences at a time."""
    longest = int(data.views[-1].lengths.max())
    return int(max(1, min(_AT_ONCE, execution.evaluated // max(1, longest))))


def know_widths(model: Model, wide: tuple[int, ...], device: str) -> None:
    """Before something of these widths is recorded."""
    for encoder, width in zip(model.encoders, wide, strict=True):
        know_width(encoder.model, width, device)


class RecordedLook:
    """Passes over one split, recorded for each width. Whatever weights the model has are looked
    at: a recording reads them where they are."""

    def __init__(
        self,
        model: Model,
        data: Data,
        pads: tuple[int, ...],
        execution: Execution,
        recorder: Recorder,
        passes: int,
    ) -> None:
        self.data = data
        self._model, self._execution, self._recorder = model, execution, recorder
        count = len(data.views[-1])
        batches = -(-count // size_of(data, execution))
        size = -(-count // batches)  # all of one size, as nearly as may be
        self._batches = by_length(data.views[-1].lengths, size)
        self._needed = [tuple(int(v.lengths[b].max()) for v in data.views) for b in self._batches]
        costs = [cost_of(encoder.model) for encoder in model.encoders]  # type: ignore[arg-type]
        self._widths = [
            chosen(
                rounded([needed[place] for needed in self._needed], passes),
                lambda width, cost=cost: cost.look(size, width),  # type: ignore[misc]
                cost.recording_looks,
            )
            for place, cost in enumerate(costs)
        ]
        kinds = len({self._wide(needed) for needed in self._needed})
        asked = passes * len(self._batches) * sum(cost.asking for cost in costs)
        self.pays = asked > kinds * sum(cost.recording_looks for cost in costs)
        """It is quicker than to look as it comes."""
        if not self.pays:
            return
        self._resident = Resident(data, pads, execution.device)
        rows = np.full((len(self._batches), size), NOBODY)
        for row, batch in zip(rows, self._batches, strict=True):
            row[: len(batch)] = batch
        self._rows = torch.from_numpy(rows).to(execution.device)
        self._next = torch.zeros(1, dtype=torch.int64, device=execution.device)
        self._recorded: dict[tuple[int, ...], tuple[Work, list[Tensor | None]]] = {}

    def __call__(self) -> Looks:
        self._model.eval()
        found: Looks = []
        with torch.inference_mode(), uncompiled():
            for wide in dict.fromkeys(self._wide(needed) for needed in self._needed):
                if wide not in self._recorded:
                    self._recorded[wide] = self._record(wide)
            self._next.zero_()
            for indices, needed in zip(self._batches, self._needed, strict=True):
                replay, outputs = self._recorded[self._wide(needed)]
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
            self._outputs(wide)

        return self._recorder.record(run, rehearse, "look"), outputs

    def _outputs(self, wide: tuple[int, ...]) -> list[Tensor | None]:
        rows = self._rows.index_select(0, self._next)[0]
        self._next += 1
        with autocast(self._execution):
            found = self._model(*self._resident.batch(rows, wide).inputs)
        return [found.classes, found.starts, found.ends]

    def _wide(self, needed: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(widened(n, widths) for n, widths in zip(needed, self._widths, strict=True))
