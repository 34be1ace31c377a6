"""Metrics of numbers, beside scipy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import r2_score, root_mean_squared_error

from supermax.errors import UserError
from supermax.training.eval.metrics import METRICS, check_metric
from supermax.training.eval.number_metrics import number_metrics

values = st.integers(-8, 8).map(lambda n: n / 4)  # with ties


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(values, values), min_size=2, max_size=40))
def test_metrics_equal_those_of_other_libraries(pairs: list[tuple[float, float]]) -> None:
    true, predicted = map(np.array, zip(*pairs, strict=True))
    found = number_metrics(true, predicted)
    assert found["rmse"] == pytest.approx(root_mean_squared_error(true, predicted), abs=1e-12)
    if np.ptp(true) == 0:
        assert math.isnan(found["r2"])
        assert math.isnan(found["pearson"])
        assert math.isnan(found["spearman"])
        return
    assert found["r2"] == pytest.approx(r2_score(true, predicted), abs=1e-9)
    if np.ptp(predicted) == 0:
        assert (found["pearson"], found["spearman"]) == (0, 0)
        return
    assert found["pearson"] == pytest.approx(stats.pearsonr(true, predicted)[0], abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(true, predicted)[0], abs=1e-9)


def test_predictions_that_differ_by_rounding_alone_have_no_order() -> None:
    constant = 5 + np.array([0, 1e-15, -1e-15, 0])
    found = number_metrics([1.0, 2, 3, 4], constant)
    assert (found["pearson"], found["spearman"]) == (0, 0)


def test_a_diverged_model_has_no_metrics() -> None:
    assert all(map(math.isnan, number_metrics([1.0, 2], [1, np.inf]).values()))
    with pytest.raises(UserError, match="no examples"):
        number_metrics([], [])


def test_directions() -> None:
    assert {n: METRICS[n].higher for n in number_metrics([0, 1], [0, 1])} == {
        "spearman": True,
        "pearson": True,
        "rmse": False,
        "r2": True,
    }
    with pytest.raises(UserError, match="The agent regression has no metric 'macro_f1'"):
        check_metric("macro_f1", "regression")
