"""Thresholds of labels: the best on the rows they are fitted on, and evaluated without bias."""

from __future__ import annotations

import numpy as np
import pytest

from supermax.training.eval import label_thresholds
from supermax.training.eval.label_metrics import label_metrics
from supermax.training.eval.label_thresholds import FEWEST, HALF, cross_fitted, fit_thresholds

OBJECTIVES = ["macro_f1", "micro_f1", "accuracy"]


def outputs(rng: np.random.Generator, rows: int, signal: float) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and probabilities of three labels, too low for the first one."""
    truth = rng.random((rows, 3)) < (0.3, 0.5, 0.4)
    logits = rng.normal(size=(rows, 3)) + signal * truth - np.array([2.0, 0.0, -0.5])
    return truth, 1 / (1 + np.exp(-logits))


def value(truth: np.ndarray, p: np.ndarray, thresholds: np.ndarray, objective: str) -> float:
    if objective == "accuracy":  # of each label, which is what thresholds of labels can improve
        return float(((p > thresholds) == truth).mean())
    return label_metrics(truth, p > thresholds, p)[objective]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_other_thresholds_are_better_on_the_same_rows(objective: str) -> None:
    rng = np.random.default_rng(1)
    for signal in (0.0, 1.5):
        truth, p = outputs(rng, 60, signal)
        fitted = fit_thresholds(truth, p, objective)
        best = value(truth, p, fitted, objective)
        for _ in range(300):
            other = fitted.copy()
            changed = rng.integers(3)
            other[changed] = rng.choice([rng.random(), *(p[:, changed] - 1e-9)])
            assert value(truth, p, other, objective) <= best + 1e-9


def test_other_objectives_fit_the_f1_of_each_label() -> None:
    truth, p = outputs(np.random.default_rng(2), 80, 1.0)
    expected = fit_thresholds(truth, p, "macro_f1")
    for objective in ("auprc", "f1_1", "recall"):
        assert (fit_thresholds(truth, p, objective) == expected).all()


def test_of_equally_good_thresholds_the_one_closest_to_a_half_is_chosen() -> None:
    truth = np.array([[True]] * 10 + [[False]] * 10)
    p = np.where(truth, 0.9, 0.7)
    assert fit_thresholds(truth, p, "macro_f1")[0] == pytest.approx(0.8)
    separated = np.where(truth, 0.6, 0.3)
    assert (separated > fit_thresholds(truth, separated, "micro_f1")).tolist() == truth.tolist()


def test_a_label_with_few_examples_keeps_a_half() -> None:
    rng = np.random.default_rng(3)
    for count, fitted in ((FEWEST - 1, False), (FEWEST, True)):
        truth = np.zeros((60, 2), dtype=np.bool_)
        truth[:count, 0] = truth[: 60 - count, 1] = True
        p = np.clip(0.05 + 0.1 * truth + 0.01 * rng.random((60, 2)), 0, 1)
        assert ((fit_thresholds(truth, p, "macro_f1") != HALF) == fitted).all()
    nothing = fit_thresholds(truth[:0], p[:0], "macro_f1")
    assert (nothing == HALF).all()


def test_no_row_has_a_part_in_its_own_thresholds() -> None:
    truth, p = outputs(np.random.default_rng(4), 90, 1.0)
    groups = [f"g{i // 3}" for i in range(90)]
    before = cross_fitted(truth, p, "macro_f1", groups)
    for group in ("g0", "g7"):
        own = np.array([name == group for name in groups])
        after = cross_fitted(np.where(own[:, None], ~truth, truth), p, "macro_f1", groups)
        assert (after[own] == before[own]).all()
        assert (after != before).any()


def gain_on_noise(rng: np.random.Generator) -> tuple[float, float]:
    """Return the gain over a threshold of a half that cross-fitted thresholds report, and that of
    thresholds that are fitted on the same rows.

    Labels do not depend on the probabilities, and half of the rows have each: every threshold is
    right half of the time.
    """
    truth = rng.random((60, 3)) < 0.5
    p = 1 / (1 + np.exp(-rng.normal(size=(60, 3))))
    before = value(truth, p, np.full(3, HALF), "accuracy")
    across = cross_fitted(truth, p, "accuracy", [f"g{i}" for i in range(60)])
    fitted = fit_thresholds(truth, p, "accuracy")
    return (
        value(truth, p, across, "accuracy") - before,
        value(truth, p, fitted, "accuracy") - before,
    )


def test_on_noise_the_reported_gain_is_none() -> None:
    rng = np.random.default_rng(0)
    cross, optimistic = np.array([gain_on_noise(rng) for _ in range(150)]).T
    error = np.std(cross) / np.sqrt(len(cross))
    assert error < 0.006
    assert abs(cross.mean()) < 3 * error
    assert optimistic.mean() > 8 * error  # what thresholds fitted on the same rows would report


@pytest.mark.parametrize("objective", ["macro_f1", "micro_f1"])
def test_cross_fitted_f1_is_that_of_unseen_rows(objective: str) -> None:
    """Also on noise, where every threshold that predicts more has a higher F1."""
    rng = np.random.default_rng(5)
    reported, optimistic, unseen = [], [], []
    for _ in range(60):
        truth, p = outputs(rng, 100, 0.5)
        fresh, likely = outputs(rng, 1000, 0.5)
        fitted = fit_thresholds(truth, p, objective)
        across = cross_fitted(truth, p, objective, [f"g{i}" for i in range(100)])
        reported.append(value(truth, p, across, objective))
        optimistic.append(value(truth, p, fitted, objective))
        unseen.append(value(fresh, likely, fitted, objective))
    difference = np.array(reported) - np.array(unseen)
    error = float(np.std(difference)) / np.sqrt(len(difference))
    assert abs(difference.mean()) < 3 * error
    assert np.mean(optimistic) - np.mean(unseen) > 3 * error


def test_fitting_a_label_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio converges in a few steps, so that hundreds of labels are no problem."""
    truth, p = outputs(np.random.default_rng(6), 500, 1.0)
    steps = 0
    original = label_thresholds.best_threshold

    def counting(*arguments: np.ndarray) -> tuple[float, float]:
        nonlocal steps
        steps += 1
        return original(*arguments)

    monkeypatch.setattr(label_thresholds, "best_threshold", counting)
    fit_thresholds(truth, p, "macro_f1")
    assert steps <= 8 * truth.shape[1]
