"""Tokenized split in GPU memory: batches are assembled there from row numbers.

TokenizedSplit ──GpuDataset──▶ rows, padded lengths ──batch()──▶ Batch
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from supermax.training.data.offsets import Array
from supermax.training.data.tokenized_split import TokenizedSplit, as_targets
from supermax.training.data.tokens import NONE, Tokens
from supermax.training.models.assembly import Inputs
from supermax.training.steps.batches import Batch

NO_ROW = -1
"""Row number of a padding row, which fills a batch up to the fixed size that a CUDA graph needs.

It has the tokens of row 0 and no targets (NONE), so its loss is 0 and so is every gradient through
it. It changes no other row: attention and normalisation do not mix sequences. Loss denominators
count real examples only. A batch with padding rows therefore has the loss and gradients of the
smaller batch, up to the order of summation."""


@dataclass(frozen=True)
class _TokenTensors:
    """Tokens of one encoder, all sequences in one tensor.

    Sequence i is ids[begin[i]:begin[i + 1]]; its second segment begins at second[i].
    """

    ids: Tensor
    begin: Tensor
    second: Tensor
    pad: int
    tags: Tensor | None
    """Class of each token, in examples for entities."""

    def labels(self, rows: Tensor, padded_length: int) -> Tensor:
        """Return the classes of the tokens of these rows, NONE for padding."""
        assert self.tags is not None
        begin = self.begin[rows].unsqueeze(1)
        columns = torch.arange(padded_length, device=rows.device)
        places = (begin + columns).clamp_max(len(self.ids) - 1)
        beyond = columns >= self.begin[rows + 1].unsqueeze(1) - begin
        return self.tags[places].long().masked_fill(beyond, NONE)

    def inputs(self, rows: Tensor, padded_length: int) -> Inputs:
        """Return the sequences of these rows, padded on the right."""
        begin = self.begin[rows].unsqueeze(1)
        length = self.begin[rows + 1].unsqueeze(1) - begin
        columns = torch.arange(padded_length, device=rows.device)
        mask = columns < length
        places = (begin + columns).clamp_max(len(self.ids) - 1)
        ids = self.ids[places].long().masked_fill(~mask, self.pad)
        types = (columns >= self.second[rows].unsqueeze(1)) & mask
        return Inputs(ids, mask.long(), types.long())


class GpuDataset:
    """Tokens and targets of a split on a device."""

    def __init__(self, data: TokenizedSplit, pads: tuple[int, ...], device: str) -> None:
        last = data.views[-1]
        self._views = [
            _to_device(view, pad, device) for view, pad in zip(data.views, pads, strict=True)
        ]
        positions = (_long(part, device) for part in (last.start, last.end))
        self._targets = [as_targets(last.label).to(device), *positions]

    def batch(self, rows: Tensor, lengths: tuple[int, ...], *, padded: bool = False) -> Batch:
        """Return the sequences of these rows, for each encoder padded to its length.

        Can be captured: nothing synchronises, and no shape depends on the values of `rows`. With
        `padded`, the last position is masked in any case. Warm-ups need it: outside of capture
        transformers may skip a mask without padding, and would warm up other kernels than the
        captured ones, which always have a mask.
        """
        real = rows != NO_ROW
        existing = rows.clamp_min(0)
        inputs = [
            v.inputs(existing, length) for v, length in zip(self._views, lengths, strict=True)
        ]
        for encoder_inputs in inputs if padded else ():
            encoder_inputs.mask[-1, -1] = 0
        labels, *positions = (_masked(target[existing], ~real) for target in self._targets)
        if self._views[-1].tags is not None:
            labels = _masked(self._views[-1].labels(existing, lengths[-1]), ~real)
        return Batch(tuple(inputs), labels, *positions)


def _to_device(view: Tokens, pad: int, device: str) -> _TokenTensors:
    ids = torch.from_numpy(np.asarray(view.ids).astype(np.int32)).to(device)
    tags = torch.from_numpy(np.asarray(view.tag).astype(np.int16)).to(device)
    own_tags = tags if len(tags) else None
    return _TokenTensors(ids, _long(view.begin, device), _long(view.second, device), pad, own_tags)


def _masked(targets: Tensor, missing: Tensor) -> Tensor:
    """Return the targets with the value for no target in the rows where it is missing."""
    value = math.nan if targets.is_floating_point() else NONE
    return targets.masked_fill(missing if targets.ndim == 1 else missing[:, None], value)


def _long(values: Array, device: str) -> Tensor:
    return torch.from_numpy(np.asarray(values).astype(np.int64)).to(device)
