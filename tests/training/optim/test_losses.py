"""Losses: any split of a batch has the whole batch's gradients; extremes stay finite.

What each loss is, is compared with torch and the papers in tests/reference.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from supermax.training.config import LossConfig
from supermax.training.optim.losses import (
    class_denominator,
    class_loss,
    class_weights,
    span_denominator,
    span_loss,
)

NAMES = ("cross_entropy", "label_smoothing", "focal")
BALANCES = ("none", "weighted", "effective_number")
COUNTS = [40, 9, 3]
ROWS = 11


def config(name: str, balance: str = "none", **more: float) -> LossConfig:
    return LossConfig.model_validate({"name": name, "balance": balance, **more})


def labels_of(seed: int) -> torch.Tensor:
    labels = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(seed))
    labels[seed % ROWS] = -100
    return labels


def pieces(cuts: set[int]) -> list[slice]:
    bounds = [0, *sorted(cuts), ROWS]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


splits = st.sets(st.integers(1, ROWS - 1), max_size=ROWS - 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("balance", BALANCES)
@settings(max_examples=25, deadline=None)
@given(cuts=splits, seed=st.integers(0, 1000))
def test_micro_batches_of_classes_add_up(
    name: str, balance: str, cuts: set[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(ROWS, 5, dtype=torch.float64, generator=generator)
    head = torch.randn(5, 3, dtype=torch.float64, generator=generator).requires_grad_()
    labels, loss = labels_of(seed), config(name, balance)
    weights = class_weights(COUNTS, loss)
    share = class_denominator(labels, weights)

    def gradient(parts: list[slice]) -> torch.Tensor:
        head.grad = None
        for part in parts:
            terms = class_loss(features[part] @ head, labels[part], loss, weights)
            (terms.sum() / share).backward()
        assert head.grad is not None
        return head.grad

    whole = gradient([slice(0, ROWS)]).clone()
    assert whole.abs().max() > 1e-3
    assert (gradient(pieces(cuts)) - whole).abs().max() < 1e-10


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(cuts=splits, seed=st.integers(0, 1000))
def test_micro_batches_of_spans_add_up(name: str, cuts: set[int], seed: int) -> None:
    """Micro-batches are padded to their own longest row, as the loop's are."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(ROWS, 8, 5, dtype=torch.float64, generator=generator)
    head = torch.randn(5, 2, dtype=torch.float64, generator=generator).requires_grad_()
    lengths = torch.randint(2, 9, (ROWS,), generator=generator)
    mask = torch.arange(8) < lengths[:, None]
    starts, ends = torch.zeros(ROWS, dtype=torch.int64), lengths - 1
    starts[seed % ROWS] = ends[seed % ROWS] = -100
    loss, share = config(name), span_denominator(starts)

    def gradient(parts: list[slice]) -> torch.Tensor:
        head.grad = None
        for part in parts:
            width = int(lengths[part].max())
            logits = features[part, :width] @ head
            terms = span_loss(
                logits[..., 0], logits[..., 1], starts[part], ends[part], mask[part, :width], loss
            )
            (terms.sum() / share).backward()
        assert head.grad is not None
        return head.grad

    whole = gradient([slice(0, ROWS)]).clone()
    assert whole.abs().max() > 1e-3
    assert (gradient(pieces(cuts)) - whole).abs().max() < 1e-10


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_certain_and_hopeless_predictions_stay_finite(gamma: float, kind: torch.dtype) -> None:
    logits = torch.tensor([[300.0, -300.0], [-300.0, 300.0]], dtype=kind, requires_grad=True)
    terms = class_loss(logits, torch.tensor([0, 0]), config("focal", gamma=gamma))
    terms.sum().backward()
    assert terms.dtype == torch.float32
    assert terms.tolist() == [0.0, pytest.approx(600, rel=0.01)]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_losses_in_bf16_are_computed_in_fp32() -> None:
    logits = torch.randn(ROWS, 3).bfloat16()
    ours = class_loss(logits, labels_of(4), config("cross_entropy"))
    theirs = functional.cross_entropy(logits.float(), labels_of(4), reduction="none")
    torch.testing.assert_close(ours, theirs)


# Class weights.


@pytest.mark.parametrize("balance", ["weighted", "effective_number"])
@given(counts=st.lists(st.integers(1, 10_000), min_size=2, max_size=6))
def test_weights_are_one_on_average_and_larger_for_rarer_classes(
    balance: str, counts: list[int]
) -> None:
    weights = class_weights(counts, config("cross_entropy", balance, balance_beta=0.9999))
    assert weights is not None
    mean = sum(c * w for c, w in zip(counts, weights.tolist(), strict=True)) / sum(counts)
    assert mean == pytest.approx(1, rel=1e-5)
    by_count = [w for _, w in sorted(zip(counts, weights.tolist(), strict=True), reverse=True)]
    assert all(a <= b * 1.0001 for a, b in itertools.pairwise(by_count))


def test_weights_by_hand() -> None:
    weighted = class_weights([30, 10], config("focal", "weighted"))
    assert weighted is not None
    assert weighted.tolist() == pytest.approx([40 / 60, 40 / 20])
    effective = class_weights([30, 10], config("focal", "effective_number", balance_beta=0.9))
    assert effective is not None
    ratio = (1 - 0.9**30) / (1 - 0.9**10)
    assert (effective[1] / effective[0]).item() == pytest.approx(ratio)
    assert class_weights([30, 10], config("focal", "none")) is None


def test_a_class_that_never_occurs_has_a_finite_weight() -> None:
    for balance in ("weighted", "effective_number"):
        weights = class_weights([10, 0], config("focal", balance))
        assert weights is not None
        assert weights[0].item() == pytest.approx(1)
        assert math.isfinite(weights[1].item())


def test_a_batch_without_labels_costs_nothing() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    labels = torch.full((4,), -100)
    weights = torch.tensor([1.0, 2.0, 3.0])
    share = class_denominator(labels, weights)
    assert 0 < share < 1e-3
    (class_loss(logits, labels, config("focal"), weights).sum() / share).backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


# Spans.


def spans(name: str, start: torch.Tensor, mask: torch.Tensor, target: int) -> float:
    where = torch.tensor([target])
    return span_loss(start, start, where, where, mask, config(name)).item()


@pytest.mark.parametrize("name", NAMES)
def test_masked_positions_get_no_probability(name: str) -> None:
    """Whatever the logits there, as if those positions did not exist."""
    logits = torch.tensor([[0.3, 50.0, -1.0, 0.7]], dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1]])
    kept = logits[:, [0, 2, 3]]
    expected = class_loss(kept, torch.tensor([2]), config(name)).item()
    assert spans(name, logits, mask, 3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_any_position_is_no_nan(name: str) -> None:
    start = torch.randn(1, 4, requires_grad=True)
    where = torch.tensor([-100])
    loss = span_loss(start, start, where, where, torch.zeros(1, 4), config(name))
    loss.sum().backward()
    assert loss.item() == 0
    assert start.grad is not None
    assert start.grad.abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_target_outside_the_mask_is_loud(name: str) -> None:
    assert spans(name, torch.zeros(1, 4), torch.tensor([[1, 1, 0, 0]]), 3) > 1e30
