"""Sequence packing: several sequences share a row of tokens, which leaves hardly any padding.

    lengths ──pack()──▶ start of each sequence in [rows, row length]
    [batch, length] tokens ──packed_states()──▶ encoder on packed rows ──▶ [batch, length] states

A block-diagonal attention mask keeps the sequences of a row apart and every sequence has its own
positions, so the states are those of a padded batch, up to the order of summation. Batches can
therefore be random, whatever the lengths of their sequences.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

from supermax.training.models.sources import has_own_code

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

_ROUND = 8
"""Row lengths are multiples of this: attention kernels need aligned rows of a mask."""
_LENGTH_STEPS = 8
"""Steps between the longest sequence and twice that; each is a row length that is tried."""
_OTHER_WORK = 256
"""Cost of a token apart from attention, in attended tokens. It is set low, so that long rows are
chosen only for a clear gain."""
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")
"""Model types whose positions begin after that of the padding token, which has its own."""
_OWN_ATTENTION = ("deberta-v2",)
"""Model types with their own attention, whatever the configuration says."""
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """Placement of a batch's sequences in rows of tokens."""

    starts: Tensor
    """[batch]: index of each sequence's first token in the flattened rows; -1 for a padding
    row of the batch (NO_ROW), whose states are arbitrary."""
    rows: int
    length: int

    def to(self, device: str) -> Packing:
        return replace(self, starts=self.starts.to(device, non_blocking=True))


def row_length(longest: int) -> int:
    """Return the shortest row length that holds a sequence of `longest` tokens."""
    return -(-longest // _ROUND) * _ROUND


def pack_sequences(lengths: Indices, length: int) -> tuple[Indices, int]:
    """Return where each sequence starts in the flattened rows, and the number of rows.

    Worst fit decreasing: the longest sequence first, each into the row with the most room. That
    needs at most a few percent more rows than the optimum for short sequences. A batch of several
    sequences takes at least two rows: torch.compile treats a size of 1 as a constant.
    """
    starts = np.zeros(len(lengths), dtype=np.int64)
    least = min(2, len(lengths))
    rows = [(0, row) for row in range(least)]  # (used tokens, row), the emptiest first
    for i in np.argsort(-lengths, kind="stable"):
        used, row = rows[0]
        if used + lengths[i] <= length:
            heapq.heapreplace(rows, (used + int(lengths[i]), row))
        else:
            used, row = 0, len(rows)
            heapq.heappush(rows, (int(lengths[i]), row))
        starts[i] = row * length + used
    return starts, len(rows)


def pack(lengths: Indices) -> Packing:
    """Return the packing of a batch with the cheapest row length. Rows as long as the longest
    sequence hold one sequence each where lengths are similar; longer rows hold several."""
    shortest = row_length(int(lengths.max()))
    step = row_length(-(-shortest // _LENGTH_STEPS))
    tried = ((*pack_sequences(lengths, n), n) for n in range(shortest, 2 * shortest + 1, step))
    starts, rows, length = min(tried, key=lambda packed: _cost(*packed[1:]))
    return Packing(torch.from_numpy(starts), rows, length)


def _cost(rows: int, length: int) -> int:
    return rows * length * (length + _OTHER_WORK)


def packed_states(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, types: Tensor | None, packing: Packing
) -> Tensor:
    """Return the states [batch, length, size] of padded sequences, computed in packed rows. States
    of padding are arbitrary, as they are without packing."""
    batch, length = ids.shape
    shape = (packing.rows, packing.length)
    columns = torch.arange(length, device=ids.device)
    spare = packing.rows * packing.length  # one more element for padding, cut off below
    starts = packing.starts.unsqueeze(1)
    index = torch.where(mask.bool() & (starts >= 0), starts + columns, spare).flatten()
    inverse = torch.full((spare + 1,), -1, dtype=torch.int64, device=ids.device)
    inverse = inverse.scatter(0, index, torch.arange(batch * length, device=ids.device))[:-1]
    source = inverse.clamp_min(0)
    segments = torch.where(inverse >= 0, source // length + 1, 0).view(shape)
    rows = _Rows(
        ids=ids.flatten()[source].view(shape),
        positions=_positions(model, ids).flatten()[source].view(shape),
        segments=segments,
        types=None if types is None else types.flatten()[source].view(shape),
    )
    states: Tensor = _FAMILIES[_family(model)](model, rows).last_hidden_state
    flat = states.reshape(spare, states.shape[-1])
    found: Tensor = _Rearrange.apply(flat, index.clamp_max(spare - 1), inverse)  # type: ignore[no-untyped-call]
    return found.view(batch, length, -1)


def can_pack(model: PreTrainedModel) -> bool:
    """Return whether this encoder can be given packed rows. Nothing is known of an encoder with
    code of its own, whatever it calls its model type. A convolution, which some of
    DeBERTa-v2 have, would mix sequences that are neighbours in a row. Other implementations of
    attention than SDPA do not take a mask of pairs: eager attention would add True as 1."""
    config = model.config
    convolves = (getattr(config, "conv_kernel_size", 0) or 0) > 0
    masks = _family(model) in _OWN_ATTENTION or config._attn_implementation == "sdpa"
    known = _family(model) in _FAMILIES and not has_own_code(config)
    return known and masks and not convolves


def _positions(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the positions [batch, length] that the model would give to padded sequences."""
    if _family(model) not in _AFTER_PADDING:
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    pad = model.config.pad_token_id
    counted = (ids != pad).long()  # a text may hold the padding token too
    positions: Tensor = counted.cumsum(1) * counted + pad
    return positions


def _family(model: PreTrainedModel) -> str:
    return str(model.config.model_type)


@dataclass(frozen=True)
class _Rows:
    ids: Tensor
    positions: Tensor
    """Position of each token in its own sequence, as the model counts."""
    segments: Tensor
    """Number of the sequence a token belongs to, from 1; 0 for padding."""
    types: Tensor | None

    @property
    def mask(self) -> Tensor:
        """Attention mask [rows, 1, length, length]: tokens attend to their own sequence. Padding
        attends to padding, since a softmax over nothing is NaN."""
        return (self.segments.unsqueeze(1) == self.segments.unsqueeze(2)).unsqueeze(1)


class _Rearrange(torch.autograd.Function):
    """Return source[index], with a gradient that is a gather instead of a scatter-add.

    torch would add up the gradients of all reads of a row. Here each row is read by at most one
    token, given by `inverse` (-1: by none), and by padding, whose gradient is 0: poolings, span
    losses and NO_ROW targets mask it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, source: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return source[index]

    @staticmethod
    def backward(ctx: BackwardCFunction, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        found = gradient[inverse.clamp_min(0)]
        return found.masked_fill((inverse < 0).unsqueeze(1), 0), None, None


# How to pass a mask of pairs and positions to each model type.


def _one_mask(model: PreTrainedModel, rows: _Rows) -> BaseModelOutput:
    """BERT and EuroBERT: positions are an input, learned or rotary; one mask for all layers."""
    more = {} if rows.types is None else {"token_type_ids": rows.types}
    return model(input_ids=rows.ids, attention_mask=rows.mask, position_ids=rows.positions, **more)


def _modernbert(model: PreTrainedModel, rows: _Rows) -> BaseModelOutput:
    """Rotary positions; some layers attend to a window around each token only."""
    columns = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    apart = (columns.unsqueeze(0) - columns.unsqueeze(1)).abs()
    near = apart <= model.config.sliding_window
    masks = {"full_attention": rows.mask, "sliding_attention": rows.mask & near}
    return model(input_ids=rows.ids, attention_mask=masks, position_ids=rows.positions)


def _deberta(model: PreTrainedModel, rows: _Rows) -> BaseModelOutput:
    """Relative positions, which are the same wherever in a row a sequence begins. The model takes
    no mask of pairs, but its stack of layers does."""
    stack = model.encoder
    stack.get_attention_mask = lambda _: rows.mask
    try:
        more = {} if rows.types is None else {"token_type_ids": rows.types}
        mask = (rows.segments > 0).long()
        return model(input_ids=rows.ids, attention_mask=mask, position_ids=rows.positions, **more)
    finally:
        del stack.get_attention_mask


_FAMILIES: dict[str, Callable[[PreTrainedModel, _Rows], BaseModelOutput]] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "eurobert", *_AFTER_PADDING), _one_mask),
    "modernbert": _modernbert,
    "deberta-v2": _deberta,
}
