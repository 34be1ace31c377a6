"""Metrics: each against scikit-learn, with its bounds, and whatever the order of the examples."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.exceptions import UndefinedMetricWarning

from supermax import UserError
from supermax.training.metrics import (
    METRICS,
    check_metric,
    class_metrics,
    span_metrics,
    touched,
    word_bounds,
)


@st.composite
def judged(draw: st.DrawFn) -> tuple[Any, Any]:
    """Labels and probabilities; few different values, so that there are ties."""
    classes, rows = draw(st.integers(2, 4)), draw(st.integers(1, 25))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    weights = draw(
        st.lists(
            st.lists(st.integers(1, 4), min_size=classes, max_size=classes),
            min_size=rows,
            max_size=rows,
        )
    )
    p = np.array(weights, dtype=np.float64)
    return np.array(labels), p / p.sum(1, keepdims=True)


def close(one: float, other: float) -> bool:
    return one == pytest.approx(other, abs=1e-9, nan_ok=True)


@settings(max_examples=80, deadline=None)
@given(judged())
def test_as_in_scikit_learn(case: tuple[Any, Any]) -> None:
    labels, p = case
    guess, classes = p.argmax(1), p.shape[1]
    ours = class_metrics(labels, p)
    macro = {"average": "macro", "zero_division": 0}
    assert close(ours["macro_f1"], sk.f1_score(labels, guess, **macro))
    assert close(ours["precision"], sk.precision_score(labels, guess, **macro))
    assert close(ours["recall"], sk.recall_score(labels, guess, **macro))
    assert close(ours["accuracy"], sk.accuracy_score(labels, guess))
    each = sk.f1_score(labels, guess, average=None, labels=range(classes), zero_division=0)
    assert [ours[f"f1_{i}"] for i in range(classes)] == pytest.approx(each)
    if len(np.unique(labels)) > 1:  # scikit-learn warns about a single label
        assert close(ours["mcc"], sk.matthews_corrcoef(labels, guess))


def one_versus_rest(labels: Any, p: Any, measure: Any) -> float:
    """The mean over the classes for which scikit-learn has a value."""
    values = []
    for c in [1] if p.shape[1] == 2 else range(p.shape[1]):
        positive = labels == c
        if positive.any() and (measure is sk.average_precision_score or not positive.all()):
            values.append(measure(positive, p[:, c]))
    return float(np.mean(values)) if values else math.nan


@settings(max_examples=80, deadline=None)
@given(judged())
def test_areas_as_in_scikit_learn(case: tuple[Any, Any]) -> None:
    labels, p = case
    ours = class_metrics(labels, p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        assert close(ours["auroc"], one_versus_rest(labels, p, sk.roc_auc_score))
        assert close(ours["auprc"], one_versus_rest(labels, p, sk.average_precision_score))


@settings(max_examples=100, deadline=None)
@given(judged(), st.randoms(use_true_random=False))
def test_bounds_and_order(case: tuple[Any, Any], random: Any) -> None:
    labels, p = case
    values = class_metrics(labels, p)
    for name, value in values.items():
        low = -1 if name == "mcc" else 0
        assert math.isnan(value) or low - 1e-9 <= value <= 1 + 1e-9
        check_metric(name, "criteria")
    order = list(range(len(labels)))
    random.shuffle(order)
    assert class_metrics(labels[order], p[order]) == pytest.approx(values, nan_ok=True)


def test_areas_that_are_not_defined_are_nan() -> None:
    values = class_metrics([0, 0], [[0.9, 0.1], [0.2, 0.8]])
    assert math.isnan(values["auroc"])
    assert math.isnan(values["auprc"])
    assert values["accuracy"] == 0.5
    assert values["mcc"] == 0


def test_calibration_error_by_hand() -> None:
    p = [[0.9, 0.1]] * 10 + [[0.3, 0.7]] * 10
    labels = [0] * 9 + [1] + [1] * 4 + [0] * 6  # right 9 of 10 at 0.9, 4 of 10 at 0.7
    assert class_metrics(labels, p)["ece"] == pytest.approx((0.0 + 0.3) / 2)
    # Too sure at 0.9 (8 of 10), not sure enough at 0.7 (8 of 10): this does not cancel out.
    labels = [0] * 8 + [1] * 2 + [1] * 8 + [0] * 2
    assert class_metrics(labels, p)["ece"] == pytest.approx(0.1)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 60), classes=st.integers(2, 4))
def test_calibration_error_as_defined(seed: int, rows: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels, p = rng.integers(0, classes, rows), rng.dirichlet([0.5] * classes, rows)
    confidence, right = p.max(1), p.argmax(1) == labels
    total = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert close(class_metrics(labels, p)["ece"], total)


def test_a_model_that_diverged_has_no_score() -> None:
    values = class_metrics([0, 1], [[0.5, 0.5], [math.nan, math.nan]])
    assert values
    assert all(math.isnan(value) for value in values.values())


def test_nothing_to_measure_on() -> None:
    with pytest.raises(UserError, match="no labelled examples"):
        class_metrics([], np.zeros((0, 2)))
    with pytest.raises(UserError, match="no examples"):
        span_metrics([], [], [])


# Spans.

TEXT = "I sleep badly.  No appetite, and so on."


def at(part: str) -> tuple[int, int]:
    return TEXT.index(part), TEXT.index(part) + len(part)


def test_words_that_a_span_touches() -> None:
    bounds = word_bounds(TEXT)
    assert [TEXT[a:b] for a, b in bounds] == TEXT.split()
    assert touched([at("sleep badly.")], bounds) == {1, 2}
    assert touched([at("leep bad")], bounds) == {1, 2}
    assert touched([at("  No "), at("on.")], bounds) == {3, 7}
    assert touched([(14, 16)], bounds) == set()  # white space alone
    assert touched([(0, len(TEXT))], bounds) == set(range(8))


def test_spans_by_hand() -> None:
    predicted = [[at("sleep badly")], [at("sleep badly.  No")], [], [at("so on.")], []]
    true = [[at("sleep badly.")], [at("badly.")], [], [], [at("No appetite,")]]
    values = span_metrics(predicted, true, [TEXT] * 5)
    assert values["exact_match"] == pytest.approx(2 / 5)  # full stops do not matter
    assert values["token_f1"] == pytest.approx((1 + 0.5 + 1 + 0 + 0) / 5)
    assert values["null_accuracy"] == pytest.approx(3 / 5)
    assert values["has_answer_f1"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert math.isnan(span_metrics([[]], [[]], [TEXT])["has_answer_f1"])


some_spans = st.lists(
    st.tuples(st.integers(0, 38), st.integers(1, 12)).map(lambda x: (x[0], min(sum(x), 39))),
    max_size=2,
)


@given(st.lists(st.tuples(some_spans, some_spans), min_size=1, max_size=8), st.data())
def test_spans_as_in_scikit_learn(cases: Sequence[Any], data: st.DataObject) -> None:
    def values(chosen: Sequence[Any]) -> dict[str, float]:
        return span_metrics([a for a, _ in chosen], [b for _, b in chosen], [TEXT] * len(chosen))

    ours, bounds = values(cases), word_bounds(TEXT)
    expected = []
    for guess, truth in cases:
        marks = [[i in touched(x, bounds) for i in range(8)] for x in (truth, guess)]
        expected.append(1.0 if not guess and not truth else sk.f1_score(*marks, zero_division=0))
    assert ours["token_f1"] == pytest.approx(np.mean(expected))
    null = sk.accuracy_score([bool(b) for _, b in cases], [bool(a) for a, _ in cases])
    assert ours["null_accuracy"] == pytest.approx(null)
    assert ours["exact_match"] <= ours["token_f1"]
    assert values(data.draw(st.permutations(cases))) == pytest.approx(ours, nan_ok=True)


# Names.


def test_names_directions_and_agents() -> None:
    assert check_metric("macro_f1", "share").higher
    assert not check_metric("ece").higher
    assert check_metric("f1_11", "criteria").higher
    assert [m.name for m in METRICS.values() if not m.higher] == ["ece"]
    assert set(class_metrics([0, 1], np.eye(2))) - {"f1_0", "f1_1"} == {
        name for name, metric in METRICS.items() if "criteria" in metric.agents
    }
    assert set(span_metrics([[]], [[]], [TEXT])) == {
        name for name, metric in METRICS.items() if "evidence" in metric.agents
    }


@pytest.mark.parametrize("name", ["makro_f1", "macro-f1", "MACRO_F1"])
def test_a_wrong_name_is_met_with_the_right_one(name: str) -> None:
    with pytest.raises(UserError, match="did you mean 'macro_f1'"):
        check_metric(name)


def test_a_metric_of_another_agent() -> None:
    with pytest.raises(UserError, match="The agent criteria has no metric 'token_f1'"):
        check_metric("token_f1", "criteria")
    with pytest.raises(UserError, match=r"no metric 'zzz'; there are .*null_accuracy"):
        check_metric("zzz")
    with pytest.raises(UserError):
        check_metric("f1_x")
