"""Choice of the probability above which each label is predicted.

    probabilities ──fit_thresholds()──▶ a threshold for each label, best on these rows
                  └─cross_fitted()────▶ thresholds to evaluate that choice with

As with spans (`choose_decoding.py`), the groups of examples are divided into folds, and the rows
of a fold are evaluated with thresholds that are fitted on the other folds.

A ratio such as F1 = 2 TP / (predicted + positive) is largest where the sum of 2 y - F1 over the
predicted rows is largest, at the value of F1 that this reaches (Dinkelbach 1967). `best_threshold`
finds that sum, also for the accuracy, where a predicted row gains 2 y - 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from supermax.training.eval.choose_decoding import folds_of
from supermax.training.eval.decode import best_threshold
from supermax.training.eval.metrics import Bools, Floats

HALF = 0.5
"""Threshold of a label that has too few examples to fit one."""
FEWEST = 5
"""Positive examples, and negative ones, that a threshold is fitted on at least."""
_MOST_STEPS = 20  # the ratio converges in about four


def fit_thresholds(truth: Bools, probabilities: Floats, objective: str) -> Floats:
    """Return the threshold of each label [L] that is best for an objective on these rows.

    micro_f1: the F1 over all labels together; accuracy: the accuracy of each label; every other
    objective: the F1 of each label. Equally good thresholds: the one closest to 0.5.
    """
    positives = truth.sum(axis=0)
    fitted = (positives >= FEWEST) & (len(truth) - positives >= FEWEST)
    labels = [_Label(truth[:, i], probabilities[:, i]) for i in np.flatnonzero(fitted)]
    thresholds = np.full(truth.shape[1], HALF)
    if objective == "accuracy":
        found = [label.best(1.0)[0] for label in labels]
    elif objective == "micro_f1":
        found = _jointly(labels)
    else:
        found = [_jointly([label])[0] for label in labels]
    thresholds[fitted] = found
    return thresholds


def cross_fitted(
    truth: Bools, probabilities: Floats, objective: str, groups: Sequence[str]
) -> Floats:
    """Return thresholds for each row [N, L], fitted on the groups of other folds than its own.

    Metrics with them estimate those of `fit_thresholds` on unseen rows.
    """
    fold = folds_of(groups)
    thresholds = np.full(truth.shape, HALF)
    for held_out in np.unique(fold):
        rows = fold == held_out
        thresholds[rows] = fit_thresholds(truth[~rows], probabilities[~rows], objective)
    return thresholds


class _Label:
    """Rows of one label by probability, the most probable first, so that they sort quickly."""

    def __init__(self, truth: Bools, probabilities: Floats) -> None:
        order = np.argsort(-probabilities, kind="stable")
        self.truth, self.margins = truth[order].astype(np.float64), probabilities[order] - HALF
        self.positives = float(self.truth.sum())

    def best(self, price: float) -> tuple[float, float, float]:
        """Return the threshold at which the sum of 2 y - price over the predicted rows is largest,
        with the true positives and the predicted rows."""
        margin, _ = best_threshold(self.margins, 2 * self.truth - price)
        threshold = float(np.clip(margin + HALF, 0, 1))
        predicted = self.margins + HALF > threshold
        return threshold, float(self.truth[predicted].sum()), float(predicted.sum())


def _jointly(labels: Sequence[_Label]) -> list[float]:
    """Return the thresholds at which the F1 over these labels together is largest."""
    positives = sum(label.positives for label in labels)
    value, thresholds = 0.0, [HALF for _ in labels]
    for _ in range(_MOST_STEPS):
        found = [label.best(value) for label in labels]
        predicted = sum(count for _, _, count in found)
        reached = 2 * sum(hits for _, hits, _ in found) / max(predicted + positives, 1)
        thresholds = [threshold for threshold, _, _ in found]
        if reached <= value + 1e-12:
            break
        value = reached
    return thresholds
