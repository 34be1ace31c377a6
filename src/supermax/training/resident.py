"""A split's sequences on the device: batches are put together there, by their numbers alone.

Data ──Resident──▶ rows, widths ──batch()──▶ Batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from supermax.training.batches import Batch
from supermax.training.models import Inputs
from supermax.training.tokens import NONE, Tokens

if TYPE_CHECKING:
    from supermax.training.prepare import Data

NOBODY = -1
"""The row of a sequence that is only there so that all batches have one size: nothing is asked of
it, so it adds nothing to a loss or a gradient."""


@dataclass(frozen=True)
class _View:
    """One encoder's tokens."""

    ids: Tensor
    begin: Tensor
    second: Tensor
    pad: int

    def inputs(self, rows: Tensor, width: int) -> Inputs:
        begin = self.begin[rows].unsqueeze(1)
        length = self.begin[rows + 1].unsqueeze(1) - begin
        columns = torch.arange(width, device=rows.device)
        mask = columns < length
        places = (begin + columns).clamp_max(len(self.ids) - 1)
        ids = self.ids[places].long().masked_fill(~mask, self.pad)
        types = (columns >= self.second[rows].unsqueeze(1)) & mask
        return Inputs(ids, mask.long(), types.long())


class Resident:
    def __init__(self, data: Data, pads: tuple[int, ...], device: str) -> None:
        last = data.views[-1]
        self._views = [_on(view, pad, device) for view, pad in zip(data.views, pads, strict=True)]
        self._targets = [_long(part, device) for part in (last.label, last.start, last.end)]

    def batch(self, rows: Tensor, widths: tuple[int, ...], *, padded: bool = False) -> Batch:
        """The sequences of these rows, for each encoder padded to its width. Nothing waits for
        the device, and no shape depends on what the rows are. With `padded`, some of it is padding
        in any case: without, encoders may leave out a mask that every recording has."""
        real = rows != NOBODY
        there = rows.clamp_min(0)
        inputs = [v.inputs(there, width) for v, width in zip(self._views, widths, strict=True)]
        for one in inputs if padded else ():
            one.mask[-1, -1] = 0
        return Batch(
            tuple(inputs),
            *(target[there].masked_fill(~real, NONE) for target in self._targets),
        )


def _on(view: Tokens, pad: int, device: str) -> _View:
    ids = torch.from_numpy(np.asarray(view.ids).astype(np.int32)).to(device)
    return _View(ids, _long(view.begin, device), _long(view.second, device), pad)


def _long(values: Any, device: str) -> Tensor:
    return torch.from_numpy(np.asarray(values).astype(np.int64)).to(device)
