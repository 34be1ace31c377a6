"""Decoding, compared with a search over all spans, and the no-answer policies."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax import UserError
from supermax.training.config import NoAnswerConfig
from supermax.training.eval.decode import (
    Answers,
    SpanLimits,
    best_threshold,
    decode_spans,
    gains,
    predict_spans,
)
from supermax.training.eval.metrics import token_f1

LENGTH = 9
ALWAYS = NoAnswerConfig(policy="none")


def random_windows(seed: int, windows: int) -> tuple[Any, Any, Any]:
    """Return logits, and offsets in which at most tokens 2 to 7 are the context, 3 characters
    each."""
    rng = np.random.default_rng(seed)
    start, end = rng.normal(size=(2, windows, LENGTH)) * 3
    offsets = np.full((windows, LENGTH, 2), -1)
    for window in range(windows):
        for token in range(2, rng.integers(2, 9)):
            begin = 100 * window + 3 * token
            offsets[window, token] = begin, begin + 3
    return start, end, offsets


def every_span(start: Any, end: Any, offsets: Any, config: SpanLimits) -> tuple[Any, Any]:
    """Return the best span of one window by a search over all allowed spans."""
    context = [t for t in range(LENGTH) if offsets[t, 0] >= 0]
    firsts = sorted(context, key=lambda t: -start[t])[: config.n_best]
    lasts = sorted(context, key=lambda t: -end[t])[: config.n_best]
    pairs = [(a, b) for a in firsts for b in lasts if 0 <= b - a < config.max_answer]
    pairs = pairs or [(t, t) for t in context]
    if not pairs:
        return -math.inf, (-1, -1)
    a, b = max(pairs, key=lambda pair: start[pair[0]] + end[pair[1]])
    return start[a] + end[b], (offsets[a, 0], offsets[b, 1])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    owners=st.lists(st.sampled_from("abc"), min_size=1, max_size=7),
    n_best=st.integers(1, 12),
    max_answer=st.integers(1, 10),
)
def test_the_best_of_all_spans_of_all_windows(
    seed: int, owners: list[str], n_best: int, max_answer: int
) -> None:
    start, end, offsets = random_windows(seed, len(owners))
    config = SpanLimits(n_best=n_best, max_answer=max_answer)
    answers = decode_spans(owners, start, end, offsets, config)
    assert answers.ids == tuple(dict.fromkeys(owners))
    for row, name in enumerate(answers.ids):
        mine = [w for w, owner in enumerate(owners) if owner == name]
        found = [every_span(start[w], end[w], offsets[w], config) for w in mine]
        score, span = max(found, key=lambda pair: pair[0])
        assert answers.score[row] == pytest.approx(score)
        assert tuple(answers.spans[row]) == span
        assert answers.null[row] == pytest.approx(min(start[w, 0] + end[w, 0] for w in mine))


def window(**logits: tuple[float, float]) -> tuple[Any, Any, Any]:
    """Return one window: position 0, a token of the question, and a context of five, t0 to t4."""
    names = ["null", "question", "t0", "t1", "t2", "t3", "t4"]
    pairs = np.array([logits.get(name, (-9.0, -9.0)) for name in names])
    offsets = [(-1, -1), (-1, -1), *((4 * i, 4 * i + 3) for i in range(5))]
    return pairs[None, :, 0], pairs[None, :, 1], np.array(offsets)[None]


def test_only_the_context_and_only_forwards() -> None:
    logits = window(question=(90, 90), null=(80, 80), t3=(7, 0), t1=(5, 8))
    answers = decode_spans(["x"], *logits, SpanLimits(n_best=2))
    assert answers.spans.tolist() == [[4, 7]]  # t1 alone; t3 to t1 would score 15
    assert answers.score.tolist() == [13]
    assert answers.null.tolist() == [160]


def test_the_longest_answer() -> None:
    logits = window(t0=(5, 1), t4=(0, 5))
    whole = decode_spans(["x"], *logits, SpanLimits(max_answer=5))
    assert whole.spans.tolist() == [[0, 19]]
    short = decode_spans(["x"], *logits, SpanLimits(max_answer=4))
    assert short.spans.tolist() == [[0, 3]]


def test_there_is_an_answer_even_where_the_best_ends_lie_before_the_best_starts() -> None:
    logits = window(t4=(5, -4), t0=(-4, 5), t2=(2, 2))
    answers = decode_spans(["x"], *logits, SpanLimits(n_best=1))
    assert answers.spans.tolist() == [[8, 11]]
    assert answers.score.tolist() == [4]


def test_an_example_without_any_token_is_never_answered() -> None:
    start, end, offsets = window()
    answers = decode_spans(["x"], start, end, np.full_like(offsets, -1), SpanLimits())
    assert answers.spans.tolist() == [[-1, -1]]
    for policy in ("none", "threshold", "ratio"):
        one = NoAnswerConfig.model_validate({"policy": policy, "threshold": -1e9, "ratio": 1e-9})
        assert predict_spans(answers, one) == [[]]
    gain = gains(predict_spans(answers, ALWAYS), [[(0, 1)]], ["a b"])
    assert best_threshold(answers.margin, gain) == (0, 0)


# No answer.


def margins(*values: float) -> Answers:
    count = len(values)
    spans = np.array([[0, 1]] * count).reshape(-1, 2)
    ids = tuple(f"e{i}" for i in range(count))
    return Answers(ids, spans, np.array(values) + 2.5, np.full(count, 2.5))


def given_by(answers: Answers, calibrated: float | None = None, **policy: Any) -> list[bool]:
    config = NoAnswerConfig.model_validate(policy)
    return [bool(spans) for spans in predict_spans(answers, config, calibrated)]


def test_policies() -> None:
    some = margins(-5, 0, 0.5, 1, 800)
    assert given_by(some, policy="none") == [True] * 5
    assert given_by(some, policy="threshold", threshold=0.5) == [False, False, False, True, True]
    assert given_by(some, policy="threshold", threshold=-6) == [True] * 5
    assert given_by(some, policy="ratio", ratio=1.0) == [False, False, True, True, True]
    assert given_by(some, policy="ratio", ratio=math.exp(0.7)) == [False, False, False, True, True]
    assert given_by(some, 0.75, policy="calibrated") == [False, False, False, True, True]
    with pytest.raises(UserError, match="needs a threshold"):
        given_by(some, policy="calibrated")


def test_within_a_window_the_ratio_is_one_of_probabilities() -> None:
    start, end, offsets = window(null=(1.0, 0.5), t1=(1.2, 0.7))
    answers = decode_spans(["x"], start, end, offsets, SpanLimits())
    p = [np.exp(x[0]) / np.exp(x[0]).sum() for x in (start, end)]
    ratio = (p[0][3] * p[1][3]) / (p[0][0] * p[1][0])
    assert given_by(answers, policy="ratio", ratio=ratio * 0.999) == [True]
    assert given_by(answers, policy="ratio", ratio=ratio * 1.001) == [False]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.booleans()), min_size=1))
def test_no_other_threshold_is_better(cases: list[tuple[int, bool, bool]]) -> None:
    """Examples have ties, right and wrong answers, and may have no true answer."""
    answers = margins(*(float(margin) for margin, _, _ in cases))
    true = [[(0, 1) if right else (2, 3)] if some else [] for _, some, right in cases]
    texts = ["a b"] * len(cases)

    def score(threshold: float) -> float:
        one = NoAnswerConfig(policy="threshold", threshold=threshold)
        return float(token_f1(predict_spans(answers, one), true, texts).mean())

    gain = gains(predict_spans(answers, ALWAYS), true, texts)
    found, total = best_threshold(answers.margin, gain)
    assert total == pytest.approx(gain[answers.margin > found].sum())
    assert math.isfinite(found)
    assert score(found) == pytest.approx(max(score(t / 2) for t in range(-12, 13)))


def test_a_threshold_between_neighbouring_numbers() -> None:
    above = np.nextafter(1.0, 2.0)
    found, gain = best_threshold(np.array([1.0, above]), np.array([-1.0, 1.0]))
    assert (1.0 <= found < above, gain) == (True, 1.0)
    assert best_threshold(np.array([]), np.array([])) == (0, 0)


def test_thousands_of_windows_take_about_a_second() -> None:
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 2000, 384)).astype(np.float32)
    offsets = np.stack([np.arange(384) * 3, np.arange(384) * 3 + 3], axis=1)
    offsets[:20] = -1
    ids = [f"e{i // 2}" for i in range(2000)]
    before = time.process_time()
    answers = decode_spans(ids, start, end, np.broadcast_to(offsets, (2000, 384, 2)), SpanLimits())
    assert len(answers.ids) == 1000
    assert time.process_time() - before < 10  # loops in Python take far longer
