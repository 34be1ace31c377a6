"""Sequence packing: the states and gradients of a padded batch, in fewer rows of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from supermax.training.models import architectures
from supermax.training.models.assembly import Encoder, Inputs
from supermax.training.models.encoders import finish_loading, untrained
from supermax.training.models.packing import Packing, pack, pack_sequences, row_length
from supermax.training.steps.batches import collate, order
from supermax.training.steps.step import loss_denominators, loss_of
from tests.training.corpora import config, ready

FAMILIES = sorted(set(architectures.TINY) - {"tiny"})
LENGTHS = np.array([5, 40, 17, 3, 64, 30, 9])
"""Longer than ModernBERT's window of attention, which is 32 in tiny ones."""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=80), st.integers(64, 128))
def test_sequences_lie_whole_in_rows_and_never_overlap(lengths: list[int], width: int) -> None:
    starts, rows = pack_sequences(np.array(lengths), width)
    used = np.zeros(rows * width, dtype=int)
    for start, length in zip(starts, lengths, strict=True):
        assert start // width == (start + length - 1) // width
        used[start : start + length] += 1
    assert used.max() == 1
    assert min(2, len(lengths)) <= rows <= max(2, len(lengths))
    # No two rows could be one, but for the two that there are at least.
    filled = np.sort(used.reshape(rows, width).sum(1))
    assert rows == 2 or rows == 1 or filled[0] + filled[1] > width


def test_little_padding_is_left_of_random_batches() -> None:
    lengths = np.random.RandomState(0).randint(5, 500, 3000)
    real = packed_tokens = padded_tokens = 0
    for batch in order(lengths, 16, 0, 0):
        width = row_length(int(lengths[batch].max()))
        real += int(lengths[batch].sum())
        packed_tokens += pack_sequences(lengths[batch], width)[1] * width
        padded_tokens += len(batch) * int(lengths[batch].max())
    assert packed_tokens < 1.2 * real
    assert padded_tokens > 1.8 * real


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_a_batch_is_never_packed_into_more_than_padding_takes(lengths: list[int]) -> None:
    found = pack(np.array(lengths))
    narrowest = row_length(max(lengths))
    assert narrowest <= found.length <= 2 * narrowest
    assert found.rows * found.length <= pack_sequences(np.array(lengths), narrowest)[1] * narrowest


def test_sequences_of_like_length_share_wider_rows() -> None:
    """No two of them fit into a row as wide as the longest."""
    lengths = np.random.RandomState(0).randint(21, 41, 16)
    assert pack_sequences(lengths, 40)[1] == 16
    found = pack(lengths)
    assert found.rows * found.length < 1.15 * lengths.sum()
    assert 16 * lengths.max() > 1.2 * lengths.sum()


def encoder_of(family: str, **more: Any) -> Any:
    if family == "camembert":  # no tiny one has that name; it is built like RoBERTa
        settings = {**architectures._SMALL, **architectures._ROBERTA, "pad_token_id": 1}
        made = AutoConfig.for_model("camembert", **settings)
    else:
        made = architectures.configuration(family)
    for name, value in more.items():
        setattr(made, name, value)
    for name in dir(made):
        if "dropout" in name and isinstance(getattr(made, name), float):
            setattr(made, name, 0.0)
    torch.manual_seed(0)
    return Encoder(finish_loading(untrained(made)).double().train())


def inputs_of(pad: int) -> Inputs:
    torch.manual_seed(1)
    columns = torch.arange(int(LENGTHS.max()))
    mask = (columns < torch.from_numpy(LENGTHS).unsqueeze(1)).long()
    ids = torch.randint(5, 2000, mask.shape).masked_fill(mask == 0, pad)
    return Inputs(ids, mask, (columns >= 3).long() * mask)


@pytest.mark.parametrize(("spare", "width"), [(0, 64), (2, 64), (0, 88), (0, 600)])
@pytest.mark.parametrize("family", [*FAMILIES, "camembert"])
def test_states_and_gradients_are_those_of_a_padded_batch(
    family: str, spare: int, width: int
) -> None:
    """With rows to spare, as a captured step may have them, and with rows that are wider than the
    longest sequence, or than the encoder has positions."""
    encoder = encoder_of(family)
    assert encoder.packs
    plain = inputs_of(encoder.model.config.pad_token_id or 0)
    starts, rows = pack_sequences(LENGTHS, width)
    assert rows < len(LENGTHS) - 2
    rows_packed = Packing(torch.from_numpy(starts), rows + spare, width)
    weight = torch.randn(*plain.ids.shape, encoder.size, dtype=torch.float64)
    weight = weight * plain.mask.unsqueeze(-1)
    found = []
    for inputs in (plain, Inputs(plain.ids, plain.mask, plain.types, rows_packed)):
        encoder.zero_grad()
        states = encoder(inputs) * plain.mask.unsqueeze(-1)
        (states * weight).sum().backward()
        gradients = {
            n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None
        }
        found.append((states.detach(), gradients))
    (states, gradients), (others, theirs) = found
    assert torch.allclose(states, others, rtol=0, atol=1e-12)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, theirs[name], rtol=1e-9, atol=1e-9), name


def test_an_encoder_with_a_convolution_is_not_packed() -> None:
    """It would mix the tokens of neighbours: some of DeBERTa-v2 have one after the first layer."""
    convolves = encoder_of("tiny-deberta", conv_kernel_size=3, conv_act="gelu")
    assert convolves.model.encoder.conv is not None
    assert not convolves.packs


@pytest.mark.parametrize("family", sorted({*FAMILIES, "camembert"} - {"tiny-deberta"}))
def test_attention_that_takes_no_mask_of_pairs_is_not_packed(family: str) -> None:
    """Eager attention adds a mask to the scores; True would be 1."""
    assert encoder_of(family).packs
    assert not encoder_of(family, _attn_implementation="eager").packs


@pytest.mark.parametrize("family", [*FAMILIES, "camembert"])
def test_the_padding_token_may_stand_in_a_text(family: str) -> None:
    encoder = encoder_of(family).eval()
    pad = encoder.model.config.pad_token_id or 0
    plain = inputs_of(pad)
    plain.ids[1, 7] = plain.ids[4, 20] = pad
    packed = replace(plain, packing=_packing(LENGTHS, 64))
    real = plain.mask.bool()
    with torch.inference_mode():
        difference = (encoder(packed)[real] - encoder(plain)[real]).abs().max()
    assert difference < 1e-12


def test_padding_rows_change_nothing() -> None:
    encoder = encoder_of("tiny-bert").eval()
    plain = inputs_of(0)
    starts, rows = pack_sequences(LENGTHS[:-1], 64)
    real = Packing(torch.from_numpy(starts), rows, 64)
    filled = Packing(torch.from_numpy(np.append(starts, -1)), rows, 64)
    with torch.inference_mode():
        some = encoder(Inputs(plain.ids[:-1], plain.mask[:-1], plain.types[:-1], real))
        more = encoder(Inputs(plain.ids, plain.mask, plain.types, filled))
    real_tokens = plain.mask[:-1].bool()
    assert torch.equal(some[real_tokens], more[:-1][real_tokens])
    assert torch.isfinite(more).all()


def _packing(lengths: Any, width: int) -> Packing:
    starts, rows = pack_sequences(lengths, width)
    return Packing(torch.from_numpy(starts), rows, width)


@pytest.mark.parametrize("agent", ["criteria", "evidence", "share", "joint"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention", "last"])
def test_losses_and_gradients_of_an_agent_are_the_same(
    tmp_path: Path, agent: str, pooling: str
) -> None:
    one = ready(tmp_path, config(agent, head={"pooling": pooling}))
    model, data = one.model.double().train(), one.train
    indices = data.rows(order(data.lengths, 12, 1, 0)[0])
    batch = collate(data.views, one.pads, indices)
    few = replace(
        batch,
        inputs=tuple(
            replace(inputs, packing=_packing(view.lengths[indices], 64))
            for inputs, view in zip(batch.inputs, data.views, strict=True)
        ),
    )
    assert all(some.packing is not None and some.packing.rows < 12 for some in few.inputs)
    denominators = loss_denominators(batch.labels, batch.starts, one.step.weights)
    found = []
    for some in (batch, few):
        model.zero_grad()
        loss = loss_of(model(*some.inputs), some, denominators, one.config, one.step.weights)
        loss.backward()
        found.append(
            (float(loss.detach()), [p.grad for p in model.parameters() if p.grad is not None])
        )
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-10)
    for gradient, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(gradient, other, rtol=0, atol=1e-10)
