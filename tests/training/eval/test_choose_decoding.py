"""Decoding settings that an evaluation chooses from its outputs: the best, and without bias."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.training.config import DecodeConfig, Decoding, NoAnswerConfig
from supermax.training.eval.choose_decoding import (
    MAX_ANSWER,
    N_BEST,
    Candidates,
    candidates_of,
    choose,
    cross_fit,
    options,
    predict_cross_fitted,
)
from supermax.training.eval.decode import (
    Answers,
    SpanLimits,
    decode_spans,
    decode_spans_within,
    predict_spans,
)
from supermax.training.eval.metrics import Span, answer_values, span_metrics

OPEN = NoAnswerConfig()
TEXT = "the cat sat on a mat, the other cat did not"
Windows = tuple[list[str], Any, Any, Any]


def windows(rng: np.random.Generator, examples: int, length: int = 24) -> Windows:
    """Return random logits of a window for each example, whose text begins at the 4th token."""
    start, end = rng.normal(size=(2, examples, length)) * 2
    tokens = np.arange(length)
    offsets = np.where(tokens[:, None] < 3, -1, np.stack([3 * tokens - 9, 3 * tokens - 7], 1))
    return [f"e{i}" for i in range(examples)], start, end, np.stack([offsets] * examples)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_one_pass_finds_what_one_pass_for_each_of_the_limits_finds(
    seed: int, owners: list[str]
) -> None:
    _, start, end, offsets = windows(np.random.default_rng(seed), len(owners))
    start = np.round(start)  # ties
    limits = [SpanLimits(n, longest) for n in (1, 4, 30) for longest in (1, 3, 64)]
    found = decode_spans_within(owners, start, end, offsets, limits)
    for each, answers in zip(limits, found, strict=True):
        alone = decode_spans(owners, start, end, offsets, each)
        assert answers.spans.tolist() == alone.spans.tolist()
        assert answers.score.tolist() == alone.score.tolist()


spans = st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT))).map(
    lambda pair: (min(pair), max(pair))
)


@settings(max_examples=60, deadline=None)
@given(guess=spans, true=st.lists(spans, max_size=2))
def test_the_value_of_a_prediction_is_that_of_the_metric(guess: Span, true: list[Span]) -> None:
    for prediction in ([guess], []):
        for metric, value in span_metrics([prediction], [true], [TEXT]).items():
            expected = 0 if np.isnan(value) else value  # has_answer_f1 does not count all examples
            assert answer_values(metric, [prediction], true, TEXT) == [pytest.approx(expected)]


def test_the_limits_that_a_configuration_leaves_open_are_compared() -> None:
    everything = options(DecodeConfig())
    assert (everything[0], len(everything)) == (SpanLimits(), len(N_BEST) * len(MAX_ANSWER))
    assert options(DecodeConfig(max_answer=30)) == [SpanLimits(n, 30) for n in N_BEST]
    assert options(DecodeConfig(n_best=2, max_answer=30)) == [SpanLimits(2, 30)]


def found_in(rng: np.random.Generator, metric: str, policy: NoAnswerConfig) -> tuple[Any, ...]:
    """Return candidates of random outputs, true answers and texts."""
    ids, start, end, offsets = windows(rng, 25)
    texts = [" ".join(rng.choice(list("abcd"), 30)) for _ in ids]
    true = [
        [(3 * int(t), 3 * int(t) + 5)] * int(rng.random() < 0.7) for t in rng.integers(0, 18, 25)
    ]
    limits = options(DecodeConfig(n_best=20))
    found = decode_spans_within(ids, start, end, offsets, limits)
    return candidates_of(limits, found, metric, policy, true, texts), true, texts


@pytest.mark.parametrize("metric", ["token_f1", "has_answer_f1", "span_f1", "null_accuracy"])
def test_no_other_settings_are_better_on_all_examples(metric: str) -> None:
    candidates, true, texts = found_in(np.random.default_rng(1), metric, OPEN)

    def value(position: int, threshold: float) -> float:
        guesses = predict_spans(candidates.answers[position], OPEN, threshold)
        return span_metrics(guesses, true, texts)[metric]

    best = choose(candidates)
    assert best.policy == "calibrated"
    assert best.threshold is not None
    chosen = value(candidates.limits.index((best.n_best, best.max_answer)), best.threshold)
    thresholds = np.linspace(-20, 20, 81)
    others = [value(i, t) for i in range(len(candidates.limits)) for t in thresholds]
    assert chosen >= max(others) - 1e-9


@pytest.mark.parametrize(
    ("policy", "threshold"),
    [({"policy": "none"}, None), ({"policy": "threshold", "threshold": 1.5}, None)],
)
def test_a_policy_that_is_given_is_used_as_it_is(
    policy: dict[str, Any], threshold: float | None
) -> None:
    given_policy = NoAnswerConfig.model_validate(policy)
    candidates, true, texts = found_in(np.random.default_rng(2), "token_f1", given_policy)
    best = choose(candidates)
    assert (best.policy, best.threshold) == (policy["policy"], threshold)
    values = [
        span_metrics(predict_spans(each, given_policy), true, texts)["token_f1"]
        for each in candidates.answers
    ]
    position = candidates.limits.index((best.n_best, best.max_answer))
    assert values[position] == pytest.approx(max(values))


def test_of_equally_good_settings_the_first_are_chosen() -> None:
    answers = Answers(("a",), np.array([[0, 1]]), np.array([3.0]), np.zeros(1))
    same = Candidates(options(DecodeConfig())[:3], [answers] * 3, np.ones((3, 1)), OPEN)
    assert choose(same) == Decoding(20, 64, "calibrated", 2.5)
    nothing = predict_cross_fitted(same, ["one group"])  # nothing to choose on: the first, at 0
    assert nothing == [[(0, 1)]]


def gain_on_noise(rng: np.random.Generator, count: int) -> tuple[float, float]:
    """Return the mean gain that cross-fitted settings report, and that of the settings that are
    best on the same rows, where every setting gains nothing on average.

    Labels are random and independent of the outputs, so that answering is right half of the time.
    """
    ids, start, end, offsets = windows(rng, count)
    true: Sequence[Sequence[Span]] = [[(0, 2)] * int(rng.random() < 0.5) for _ in ids]
    texts = ["ab " * 30] * count
    limits = [SpanLimits(1, 2), SpanLimits(20, 2), SpanLimits(20, 8), SpanLimits(20, 64)]
    found = decode_spans_within(ids, start, end, offsets, limits)
    candidates = candidates_of(limits, found, "null_accuracy", OPEN, true, texts)
    groups = [f"g{i // 2}" for i in range(count)]
    answered = np.array([bool(each) for each in predict_cross_fitted(candidates, groups)])
    right = np.array([bool(each) for each in true])
    best, threshold = candidates.best(np.ones(count, dtype=np.bool_))
    same_rows = candidates.answers[best].margin > threshold
    return float((answered == right).mean()) - 0.5, float((same_rows == right).mean()) - 0.5


def test_on_noise_the_reported_gain_is_none() -> None:
    rng = np.random.default_rng(0)
    cross_fitted, optimistic = np.array([gain_on_noise(rng, 30) for _ in range(120)]).T
    error = np.std(cross_fitted) / np.sqrt(len(cross_fitted))
    assert error < 0.012
    assert abs(cross_fitted.mean()) < 3 * error
    assert optimistic.mean() > 8 * error  # what a choice on the same rows would report


def test_no_example_has_a_part_in_its_own_settings() -> None:
    rng = np.random.default_rng(3)
    candidates, *_ = found_in(rng, "token_f1", OPEN)
    groups = [f"g{i // 3}" for i in range(25)]
    before = cross_fit(candidates, groups)
    for group in ("g0", "g4"):
        own = np.array([name == group for name in groups])
        changed = np.where(own, -candidates.gains, candidates.gains)
        turned = Candidates(candidates.limits, candidates.answers, changed, OPEN)
        for now, then in zip(cross_fit(turned, groups), before, strict=True):
            assert now[own].tolist() == then[own].tolist()


def test_thousands_of_questions_take_about_a_second() -> None:
    rng = np.random.default_rng(0)
    ids, start, end, offsets = windows(rng, 2000, 200)
    texts = ["ab " * 200] * 2000
    true: Sequence[Sequence[Span]] = [[(3, 8)] * (i % 2) for i in range(2000)]
    before = time.process_time()
    limits = options(DecodeConfig())
    found = decode_spans_within(ids, start, end, offsets, limits)
    candidates = candidates_of(limits, found, "token_f1", OPEN, true, texts)
    predict_cross_fitted(candidates, ids)
    choose(candidates)
    assert time.process_time() - before < 10  # 0.5 s; loops over all spans take far longer
