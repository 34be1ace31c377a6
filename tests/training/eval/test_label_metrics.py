"""Metrics of sets of labels: equal to scikit-learn's, also on resampled rows and with ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from supermax.errors import UserError
from supermax.training.eval.label_metrics import LabelMeasure, label_metrics


def drawn(seed: int, rows: int, labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random((rows, labels)) < rng.choice([0.0, 0.1, 0.5], labels)
    probabilities = np.round(rng.random((rows, labels)), int(rng.integers(1, 4)))  # ties
    return truth, probabilities > rng.choice([0.2, 0.5, 1.1], labels), probabilities


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(2, 5))
def test_they_are_those_of_scikit_learn(seed: int, rows: int, labels: int) -> None:
    truth, predicted, probabilities = drawn(seed, rows, labels)
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 3, rows)
    for weights in (np.ones(rows, dtype=np.int64), weight + (weight.sum() == 0)):
        found = LabelMeasure(truth, predicted, probabilities)(weights)
        drawn_rows = np.repeat(np.arange(rows), weights)
        y, p, scores = (each[drawn_rows] for each in (truth, predicted, probabilities))
        for name, average in (("macro_f1", "macro"), ("micro_f1", "micro")):
            expected = sklearn.f1_score(y, p, average=average, zero_division=0)
            assert found[name] == pytest.approx(expected)
        each = sklearn.f1_score(y, p, average=None, zero_division=0)
        assert [found[f"f1_{i}"] for i in range(labels)] == pytest.approx(list(each))
        for name, function in (
            ("precision", sklearn.precision_score),
            ("recall", sklearn.recall_score),
        ):
            expected = function(y, p, average="macro", zero_division=0)
            assert found[name] == pytest.approx(expected)
        assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(y, p))
        occurs = y.any(axis=0)
        if occurs.any():
            expected = np.mean(
                [
                    sklearn.average_precision_score(y[:, i], scores[:, i])
                    for i in np.flatnonzero(occurs)
                ]
            )
            assert found["auprc"] == pytest.approx(expected)
        else:
            assert np.isnan(found["auprc"])


def test_a_diverged_model_has_no_metrics() -> None:
    truth, predicted, probabilities = drawn(1, 6, 3)
    probabilities[2, 1] = np.nan
    assert np.isnan(list(label_metrics(truth, predicted, probabilities).values())).all()
    with pytest.raises(UserError, match="no examples to measure the labels on"):
        label_metrics(truth[:0], predicted[:0], probabilities[:0])
