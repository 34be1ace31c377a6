"""Class metrics compared with scikit-learn, and the calibration error with its definition."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.exceptions import UndefinedMetricWarning

from supermax.training.eval.metrics import class_metrics


@st.composite
def judged(draw: st.DrawFn) -> tuple[Any, Any]:
    """Return labels and probabilities with few distinct values, so that there are ties."""
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
    """Return the mean over the classes for which scikit-learn has a value."""
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
