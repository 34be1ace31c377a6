"""Losses beside torch's cross-entropy, and beside formulas written anew from the papers.

Lin et al. (2017), "Focal loss for dense object detection": FL(p) = -(1 - p)^gamma log p.
Cui et al. (2019), "Class-balanced loss based on effective number of samples": a class of n
examples is weighted by (1 - beta) / (1 - beta^n).
Szegedy et al. (2016), section 7, for label smoothing: a target of 1 - s for the class, and s
spread evenly over all classes.

Values and gradients, in float64. The weights of classes are float32, which bounds how closely
losses with weights agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss, l1_loss, mse_loss

from supermax.training.config import LossConfig
from supermax.training.optim.losses import (
    class_denominator,
    class_loss,
    class_weights,
    number_loss,
    span_denominator,
    span_loss,
)

IGNORED = -100
BALANCES = ("none", "weighted", "effective_number")
few = settings(max_examples=40, deadline=None)


def config(name: str, balance: str = "none", **more: float) -> LossConfig:
    return LossConfig.model_validate({"name": name, "balance": balance, **more})


@dataclass(frozen=True)
class Case:
    logits: Tensor
    labels: Tensor
    counts: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return logits from tiny to huge, labels of which some are ignored, and class counts."""
    classes, rows = draw(st.integers(2, 5)), draw(st.integers(1, 9))
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    wanted = st.integers(0, classes - 1) | st.just(IGNORED)
    labels = draw(st.lists(wanted, min_size=rows, max_size=rows))
    labels[draw(st.integers(0, rows - 1))] = draw(st.integers(0, classes - 1))
    counts = draw(st.lists(st.integers(1, 5000), min_size=classes, max_size=classes))
    return Case(logits, torch.tensor(labels), counts)


def assert_same(
    logits: Tensor,
    ours: Callable[[Tensor], Tensor],
    theirs: Callable[[Tensor], Tensor],
    within: float = 1e-10,
) -> None:
    """Check that values and gradients agree, relative to the largest."""
    found = []
    for loss in (ours, theirs):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        found.append((value.detach(), gradient))
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() <= within * (1 + other.abs().max())


def ours_of(case: Case, loss: LossConfig, weights: Tensor | None = None) -> Any:
    """Return the loss of an effective batch as a training step computes it."""

    def value(logits: Tensor) -> Tensor:
        terms = class_loss(logits, case.labels, loss, weights)
        return terms.sum() / class_denominator(case.labels, weights)

    return value


def weights_of(case: Case, loss: LossConfig) -> tuple[Tensor | None, Tensor | None]:
    """Return the class weights as they are, and in float64."""
    weights = class_weights(case.counts, loss)
    return weights, None if weights is None else weights.double()


# The weights of classes.


@few
@given(counts=st.lists(st.integers(1, 100_000), min_size=2, max_size=6))
def test_weighted_is_the_inverse_frequency(counts: list[int]) -> None:
    """Equal to scikit-learn's class_weight="balanced", up to a factor."""
    weights = class_weights(counts, config("cross_entropy", "weighted"))
    assert weights is not None
    balanced = [sum(counts) / (len(counts) * n) for n in counts]
    assert weights.tolist() == pytest.approx(balanced, rel=1e-5)


@few
@given(
    counts=st.lists(st.integers(1, 100_000), min_size=2, max_size=6),
    beta=st.sampled_from([0.9, 0.99, 0.999, 0.9999]),
)
def test_effective_number_as_in_cui_et_al(counts: list[int], beta: float) -> None:
    """Equal up to a factor, which cancels in the loss: in the paper the weights of C classes add
    up to C; here their mean over the training examples is 1."""
    weights = class_weights(counts, config("focal", "effective_number", balance_beta=beta))
    assert weights is not None
    paper = torch.tensor([(1 - beta) / (1 - beta**n) for n in counts], dtype=torch.float64)
    ratio = weights.double() / paper
    assert ratio.tolist() == pytest.approx([ratio[0].item()] * len(counts), rel=1e-5)
    examples = torch.tensor(counts, dtype=torch.float64)
    assert (weights * examples).sum() / examples.sum() == pytest.approx(1, rel=1e-5)


# Losses of classes.


@few
@given(case=cases(), balance=st.sampled_from(BALANCES))
def test_cross_entropy_is_torchs(case: Case, balance: str) -> None:
    loss = config("cross_entropy", balance)
    weights, wide = weights_of(case, loss)
    assert_same(
        case.logits,
        ours_of(case, loss, weights),
        lambda logits: cross_entropy(logits, case.labels, wide),
        within=1e-10 if wide is None else 1e-6,  # the sum of the weights is float32
    )


@few
@given(case=cases(), smoothing=st.floats(0, 0.9))
def test_label_smoothing_is_torchs(case: Case, smoothing: float) -> None:
    assert_same(
        case.logits,
        ours_of(case, config("label_smoothing", smoothing=smoothing)),
        lambda logits: cross_entropy(logits, case.labels, label_smoothing=smoothing),
    )


@few
@given(
    case=cases(),
    smoothing=st.floats(0.01, 0.9),
    balance=st.sampled_from(["weighted", "effective_number"]),
)
def test_label_smoothing_with_weights_differs_from_torchs(
    case: Case, smoothing: float, balance: str
) -> None:
    """Here the class weight multiplies an example's whole term. PyTorch multiplies each class's
    share of the smoothed target by the weight of that class, so weights also act on the
    smoothing. The part without smoothing, and the divisor, are the same."""
    loss = config("label_smoothing", balance, smoothing=smoothing)
    weights, wide = weights_of(case, loss)
    assert weights is not None
    assert wide is not None
    known = case.labels != IGNORED
    chosen = wide[case.labels[known]]

    def expected(logits: Tensor) -> Tensor:
        each = cross_entropy(logits, case.labels, label_smoothing=smoothing, reduction="none")
        return (chosen * each[known]).sum() / chosen.sum()

    def difference(logits: Tensor) -> Tensor:
        log_p = logits[known].log_softmax(-1)
        by_class = (chosen[:, None] - wide) * -log_p
        return smoothing * by_class.mean(-1).sum() / chosen.sum()

    ours = ours_of(case, loss, weights)
    assert_same(case.logits, ours, expected, within=1e-6)
    assert_same(
        case.logits,
        ours,
        lambda logits: (
            cross_entropy(logits, case.labels, wide, label_smoothing=smoothing)
            + difference(logits)
        ),
        within=1e-6,
    )


@few
@given(
    case=cases(),
    gamma=st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]),
    balance=st.sampled_from(BALANCES),
)
def test_focal_as_in_lin_et_al(case: Case, gamma: float, balance: str) -> None:
    """The terms are the paper's, with the weight of the class as alpha. They are divided by the
    weights of the labelled examples, as torch divides cross-entropy; the paper divides by the
    number of anchors that were assigned to an object, which only detectors have."""
    loss = config("focal", balance, gamma=gamma)
    weights, wide = weights_of(case, loss)
    known = case.labels != IGNORED
    alpha = torch.ones(case.logits.shape[1]).double() if wide is None else wide

    def expected(logits: Tensor) -> Tensor:
        # The probability of all other classes, which 1 - p would lose to rounding.
        p = logits[known].softmax(-1)
        others = p.scatter(1, case.labels[known, None], 0.0).sum(-1)
        log_p = logits[known].log_softmax(-1).gather(1, case.labels[known, None]).squeeze(1)
        chosen = alpha[case.labels[known]]
        return (chosen * -(others**gamma) * log_p).sum() / chosen.sum()

    assert_same(
        case.logits, ours_of(case, loss, weights), expected, within=1e-9 if wide is None else 1e-6
    )


def test_focal_without_focus_is_cross_entropy() -> None:
    logits, labels = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0, -100])
    case = Case(logits, labels, [1, 1, 1])
    assert_same(
        logits,
        ours_of(case, config("focal", gamma=0.0)),
        ours_of(case, config("cross_entropy")),
    )


# Losses of spans.


@dataclass(frozen=True)
class SpanCase:
    starts: Tensor
    ends: Tensor
    targets: tuple[Tensor, Tensor]
    lengths: list[int]

    @property
    def mask(self) -> Tensor:
        return torch.arange(self.starts.shape[1]) < torch.tensor(self.lengths)[:, None]


@st.composite
def span_cases(draw: st.DrawFn) -> SpanCase:
    """Return rows of several lengths, padded to the longest; some are not for spans."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shape = (2, len(lengths), max(lengths))
    logits = 3 * torch.randn(shape, dtype=torch.float64, generator=generator)
    asked = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    targets: tuple[list[int], list[int]] = ([], [])
    for length, wanted in zip(lengths, asked, strict=True):
        for some in targets:
            some.append(draw(st.integers(0, length - 1)) if wanted else IGNORED)
    return SpanCase(
        logits[0], logits[1], (torch.tensor(targets[0]), torch.tensor(targets[1])), lengths
    )


def spans_by_hand(case: SpanCase, term: Callable[[Tensor, int], Tensor]) -> Any:
    """Return the loss of a batch, row by row and without padding: over the rows with spans, the
    mean of the start's and the end's term."""

    def value(both: Tensor) -> Tensor:
        total, asked = both.sum() * 0, 0
        for i, length in enumerate(case.lengths):
            first, last = (int(some[i]) for some in case.targets)
            if first != IGNORED:
                asked += 1
                total = total + term(both[0, i, :length], first) / 2
                total = total + term(both[1, i, :length], last) / 2
        return total / max(asked, 1)

    return value


def ours_of_spans(case: SpanCase, loss: LossConfig) -> Any:
    def value(both: Tensor) -> Tensor:
        terms = span_loss(both[0], both[1], *case.targets, case.mask, loss)
        return terms.sum() / span_denominator(case.targets[0])

    return value


def smoothed(smoothing: float) -> Callable[[Tensor, int], Tensor]:
    return lambda logits, target: cross_entropy(
        logits, torch.tensor(target), label_smoothing=smoothing
    )


def focal(gamma: float) -> Callable[[Tensor, int], Tensor]:
    def term(logits: Tensor, target: int) -> Tensor:
        others = logits.softmax(0).masked_fill(torch.arange(len(logits)) == target, 0.0).sum()
        return -(others**gamma) * logits.log_softmax(0)[target]

    return term


@few
@given(case=span_cases())
def test_span_cross_entropy_is_torchs_without_padding(case: SpanCase) -> None:
    """BertForQuestionAnswering gives padding some probability; here it has none, so the loss of a
    row does not depend on the other rows of its batch."""
    both = torch.stack([case.starts, case.ends])
    expected = spans_by_hand(case, smoothed(0.0))
    assert_same(both, ours_of_spans(case, config("cross_entropy")), expected)
    assert_same(both, ours_of_spans(case, config("label_smoothing", smoothing=0.0)), expected)


@few
@given(case=span_cases(), smoothing=st.floats(0.01, 0.9))
def test_span_label_smoothing_is_torchs_without_padding(case: SpanCase, smoothing: float) -> None:
    both = torch.stack([case.starts, case.ends])
    ours = ours_of_spans(case, config("label_smoothing", smoothing=smoothing))
    assert_same(both, ours, spans_by_hand(case, smoothed(smoothing)))


@few
@given(case=span_cases(), gamma=st.sampled_from([1.0, 2.0, 5.0]))
def test_span_focal_as_in_lin_et_al(case: SpanCase, gamma: float) -> None:
    both = torch.stack([case.starts, case.ends])
    ours = ours_of_spans(case, config("focal", gamma=gamma))
    assert_same(both, ours, spans_by_hand(case, focal(gamma)))


@few
@given(
    st.lists(st.floats(-3, 3) | st.just(float("nan")), min_size=1, max_size=9), st.floats(0.1, 3)
)
def test_losses_of_numbers_are_those_of_torch(targets: list[float], delta: float) -> None:
    """Missing numbers add 0 to the loss, and to the gradients."""
    generator = torch.Generator().manual_seed(len(targets))
    outputs = torch.randn(len(targets), 1, dtype=torch.float64, generator=generator)
    numbers = torch.tensor(targets, dtype=torch.float64)
    known = ~numbers.isnan()
    theirs_of: dict[str, Callable[..., Tensor]] = {
        "mse": mse_loss,
        "mae": l1_loss,
        "huber": lambda *pair, reduction: huber_loss(*pair, reduction=reduction, delta=delta),
    }
    for name, theirs in theirs_of.items():
        ours = outputs.clone().requires_grad_()
        other = outputs.clone().requires_grad_()
        loss = number_loss(ours, numbers, config(name, delta=delta)).sum()
        expected = theirs(other[known, 0], numbers[known], reduction="sum")
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, other.grad)
        assert float(class_denominator(numbers)) == pytest.approx(max(int(known.sum()), 1e-6))
