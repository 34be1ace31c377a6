"""Metrics of sets of labels, equal to those of scikit-learn with `zero_division=0`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError
from supermax.training.eval.metrics import Bools, Floats


class LabelMeasure:
    """Metrics of predicted sets of labels, also on resampled rows.

    `truth` and `predicted` are [N, L], and so are the `probabilities`. What does not depend on
    the sample is computed once.
    """

    def __init__(self, truth: Bools, predicted: Bools, probabilities: Floats) -> None:
        if len(truth) == 0:
            raise UserError("There are no examples to measure the labels on.")
        self._finite = bool(np.isfinite(probabilities).all())
        self._hits = (truth & predicted).astype(np.float64)
        self._true, self._predicted = truth.astype(np.float64), predicted.astype(np.float64)
        self._exact = (truth == predicted).all(axis=1).astype(np.float64)
        self._order = np.argsort(-probabilities, axis=0, kind="stable")
        ranked = np.take_along_axis(probabilities, self._order, 0)
        # The last row with the same probability: a threshold cannot separate them.
        rows = np.arange(len(truth))[:, None]
        ends = np.where(
            np.vstack([ranked[1:] != ranked[:-1], np.ones(len(ranked[0]))]), rows, len(rows)
        )
        self._last = np.minimum.accumulate(ends[::-1], axis=0)[::-1].astype(np.int64)

    def __call__(self, weight: npt.ArrayLike | None = None) -> dict[str, float]:
        """Return every metric; `weight` is the number of times that each row counts [N].

        macro_f1, precision and recall are means over all labels, 0 where they are not defined;
        accuracy is the share of rows whose whole set is right. auprc is the mean of the average
        precisions of the labels that occur. All are NaN if a probability is not finite.
        """
        w = np.ones(len(self._exact)) if weight is None else np.asarray(weight, dtype=np.float64)
        hits, sizes = w @ self._hits, w @ self._true + w @ self._predicted
        f1 = _ratio(2 * hits, sizes)
        values = {
            "macro_f1": float(f1.mean()),
            "micro_f1": float(_ratio(2 * hits.sum(), sizes.sum())),
            **{f"f1_{i}": float(value) for i, value in enumerate(f1)},
            "precision": float(_ratio(hits, w @ self._predicted).mean()),
            "recall": float(_ratio(hits, w @ self._true).mean()),
            "accuracy": float(w @ self._exact / w.sum()) if w.any() else float("nan"),
            "auprc": self._average_precision(w),
        }
        return values if self._finite else dict.fromkeys(values, float("nan"))

    def _average_precision(self, weight: Floats) -> float:
        ranked_weight = weight[self._order]
        positives = ranked_weight * np.take_along_axis(self._true, self._order, 0)
        precision = _ratio(np.cumsum(positives, axis=0), np.cumsum(ranked_weight, axis=0))
        at_threshold = np.take_along_axis(precision, self._last, 0)
        totals = positives.sum(axis=0)
        occurs = totals > 0
        if not occurs.any():
            return float("nan")
        values = (positives * at_threshold).sum(axis=0)[occurs] / totals[occurs]
        return float(values.mean())


def label_metrics(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, probabilities: npt.ArrayLike
) -> dict[str, float]:
    """Return every metric of sets of labels, as `LabelMeasure` does for all rows."""
    true, chosen = (np.asarray(each, dtype=np.bool_) for each in (truth, predicted))
    return LabelMeasure(true, chosen, np.asarray(probabilities, dtype=np.float64))()


def _ratio(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Floats:
    """Return the ratio; 0 where the denominator is 0."""
    top, bottom = (np.asarray(each, dtype=np.float64) for each in (numerator, denominator))
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
