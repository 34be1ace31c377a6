"""What a model is judged by: classes, spans, and the names an objective can have.

All values lie between 0 and 1, except mcc (-1 to 1). NaN means that the data does not define the
value (an AUROC without positives), or that the model's probabilities are not numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError
from supermax.words import ended, nearest

Span = tuple[int, int]
"""Characters [start, end) of a text."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ECE_BINS = 15
_CLASSES = ("criteria", "share", "joint")
_SPANS = ("evidence", "share", "joint")


@dataclass(frozen=True)
class Metric:
    name: str
    higher: bool
    """Whether more is better."""
    agents: tuple[str, ...]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(
            Metric(name, True, _CLASSES)
            for name in ("macro_f1", "precision", "recall", "accuracy", "auroc", "auprc", "mcc")
        ),
        Metric("ece", False, _CLASSES),
        *(
            Metric(name, True, _SPANS)
            for name in ("exact_match", "token_f1", "null_accuracy", "has_answer_f1")
        ),
    )
}
"""All but the F1 of single classes, f1_0, f1_1, ..., of which there are as many as classes."""


def check_metric(name: str, agent: str | None = None, classes: int | None = None) -> Metric:
    """The metric of that name. Raises UserError where there is none, or the agent has it not."""
    known = [m.name for m in METRICS.values() if agent is None or agent in m.agents]
    metric = METRICS.get(name)
    if metric is None and (single := re.fullmatch(r"f1_(0|[1-9][0-9]*)", name)):
        metric = Metric(name, True, _CLASSES)
        if classes is not None and int(single[1]) >= classes:
            raise UserError(
                f"There is no metric {name!r}: the classes are counted from f1_0 to "
                f"f1_{classes - 1}."
            )
    if metric is None:
        raise UserError(ended(f"There is no metric {name!r}{nearest(name, known)}"))
    if agent is not None and agent not in metric.agents:
        raise UserError(f"The agent {agent} has no metric {name!r}; it has {', '.join(known)}.")
    return metric


# Classes.


def class_metrics(labels: Sequence[int] | Ints, probabilities: Any) -> dict[str, float]:
    """Every metric of classes, from true classes [N] and probabilities [N, C].

    Means over classes are over those that occur among labels or predictions.
    """
    truth = np.asarray(labels, dtype=np.int64)
    p = np.asarray(probabilities, dtype=np.float64)
    if len(truth) == 0:
        raise UserError("There are no labelled examples to measure the classes on.")
    predicted = p.argmax(1)
    counts = np.zeros((p.shape[1], p.shape[1]), dtype=np.float64)  # true class by predicted one
    np.add.at(counts, (truth, predicted), 1)
    values = {
        **_from_counts(counts),
        "auroc": _over_classes(_auroc, truth, p),
        "auprc": _over_classes(_average_precision, truth, p),
        "ece": _ece(truth == predicted, p.max(1)),
    }
    # The largest of NaNs is no prediction: a model that diverged has no score, not a low one.
    return values if np.isfinite(p).all() else dict.fromkeys(values, float("nan"))


def _from_counts(counts: Floats) -> dict[str, float]:
    hit, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    f1 = _ratio(2 * hit, true + predicted)
    occurs = true + predicted > 0
    total = counts.sum()
    # Covariances between true and predicted classes (Gorodkin 2004).
    both = hit.sum() * total - true @ predicted
    alone = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return {
        "macro_f1": float(f1[occurs].mean()),
        **{f"f1_{i}": float(value) for i, value in enumerate(f1)},
        "precision": float(_ratio(hit, predicted)[occurs].mean()),
        "recall": float(_ratio(hit, true)[occurs].mean()),
        "accuracy": float(hit.sum() / total),
        "mcc": float(both / np.sqrt(alone)) if alone > 0 else 0.0,
    }


def _ratio(above: Floats, below: Floats) -> Floats:
    """Above over below; 0 where below is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _over_classes(measure: Any, truth: Ints, p: Floats) -> float:
    """Of the second class of two; otherwise the mean of one-versus-rest where it is defined."""
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    values = np.array([measure(truth == c, p[:, c]) for c in classes])
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _steps(positive: npt.NDArray[np.bool_], scores: Floats) -> tuple[Floats, Floats]:
    """How many positives and how many negatives score at least each value, highest first."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    hits = np.cumsum(positive[order])[last].astype(np.float64)
    return hits, last + 1 - hits


def _auroc(positive: npt.NDArray[np.bool_], scores: Floats) -> float:
    if positive.all() or not positive.any():
        return float("nan")
    hits, false = _steps(positive, scores)
    hits, false = np.append(0, hits), np.append(0, false)
    return float(np.trapezoid(hits / hits[-1], false / false[-1]))


def _average_precision(positive: npt.NDArray[np.bool_], scores: Floats) -> float:
    if not positive.any():
        return float("nan")
    hits, false = _steps(positive, scores)
    return float((np.diff(hits, prepend=0) * hits / (hits + false)).sum() / hits[-1])


def _ece(right: npt.NDArray[np.bool_], confidence: Floats) -> float:
    """Expected calibration error over bins of equal width, (0, 1/15], ..., (14/15, 1]."""
    finite = np.nan_to_num(confidence)
    bins = np.clip(np.ceil(finite * ECE_BINS).astype(np.int64) - 1, 0, ECE_BINS - 1)
    gaps = np.bincount(bins, weights=right - finite, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(right))


# Spans.


def span_metrics(
    predicted: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> dict[str, float]:
    """Every metric of spans, by the words that spans touch.

    exact_match: the same words; token_f1: the mean F1 of the words; null_accuracy: how often it is
    right whether there is an answer at all; has_answer_f1: token_f1 where there is one.
    """
    if not texts:
        raise UserError("There are no examples to measure the spans on.")
    f1 = word_f1(predicted, true, texts)
    answer = np.array([bool(spans) for spans in true])
    given = np.array([bool(spans) for spans in predicted])
    return {
        "exact_match": float((f1 == 1).mean()),  # F1 is 1 for equal sets alone
        "token_f1": float(f1.mean()),
        "null_accuracy": float((answer == given).mean()),
        "has_answer_f1": float(f1[answer].mean()) if answer.any() else float("nan"),
    }


def word_f1(
    predicted: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> Floats:
    """The F1 of the words of every example; 1 where there is rightly no answer."""
    values = []
    for guesses, truths, text in zip(predicted, true, texts, strict=True):
        if not guesses or not truths:
            values.append(float(not guesses and not truths))
            continue
        bounds = word_bounds(text)
        guessed, wanted = touched(guesses, bounds), touched(truths, bounds)
        size = len(guessed) + len(wanted)
        values.append(2 * len(guessed & wanted) / size if size else 0.0)
    return np.array(values, dtype=np.float64)


def word_bounds(text: str) -> Ints:
    """Where the words, as white space parts them, begin and end [words, 2]."""
    found = [match.span() for match in re.finditer(r"\S+", text)]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def touched(spans: Iterable[Span], bounds: Ints) -> set[int]:
    """The words of which a span holds at least one character."""
    words: set[int] = set()
    for start, end in spans:
        first = int(np.searchsorted(bounds[:, 1], start, side="right"))
        words.update(range(first, int(np.searchsorted(bounds[:, 0], end, side="left"))))
    return words
