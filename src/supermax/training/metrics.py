"""What a model is judged by: classes, spans, and the names an objective can have.

All values lie between 0 and 1, except mcc (-1 to 1). NaN means that the data does not define the
value (an AUROC without positives), or that the model's probabilities are not numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from supermax.errors import UserError
from supermax.training import squad
from supermax.training.data.spans import merged
from supermax.words import ended, nearest

Span = tuple[int, int]
"""Characters [start, end) of a text."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ECE_BINS = 15
_CLASSES = ("criteria", "share", "joint")
_SPANS = ("evidence", "share", "joint")
_SPAN_VERSION = 2
"""1: by the words that spans touch, calibrated thresholds judged on the rows they were fitted on.
2: by the rules of SQuAD 2.0, calibrated thresholds cross-fitted."""


@dataclass(frozen=True)
class Metric:
    name: str
    higher: bool
    """Whether more is better."""
    agents: tuple[str, ...]
    version: int = 1
    """Version of its definition. Values by two versions cannot be compared."""


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(
            Metric(name, True, _CLASSES)
            for name in ("macro_f1", "precision", "recall", "accuracy", "auroc", "auprc", "mcc")
        ),
        Metric("ece", False, _CLASSES),
        *(
            Metric(name, True, _SPANS, _SPAN_VERSION)
            for name in (
                "exact_match",
                "token_f1",
                "char_f1",
                "span_exact",
                "span_f1",
                "null_accuracy",
                "has_answer_f1",
            )
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
        near = nearest(name, known) or f"; there are {', '.join(known)}"
        raise UserError(ended(f"There is no metric {name!r}{near}"))
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
    """Return every metric of spans, each a mean over examples.

    Every true span of an example is a right answer by itself, and the best match counts. The
    pieces of a prediction with several spans are compared together.

    exact_match, token_f1: the answer's text, by the rules of SQuAD 2.0 (`squad.py`). char_f1: the
    F1 of its characters, without white space and punctuation. span_exact: the same place in the
    text, white space at the ends aside; span_f1: the F1 of the characters' places. null_accuracy:
    how often it is right whether there is an answer; has_answer_f1: token_f1 where there is one.
    """
    if not texts:
        raise UserError("There are no examples to measure the spans on.")
    rows = [_scores(*row) for row in zip(predicted, true, texts, strict=True)]
    values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    answer = np.array([bool(spans) for spans in true])
    given = np.array([bool(spans) for spans in predicted])
    return {
        **{name: float(each.mean()) for name, each in values.items()},
        "null_accuracy": float((answer == given).mean()),
        "has_answer_f1": float(values["token_f1"][answer].mean()) if answer.any() else np.nan,
    }


def _scores(guesses: Sequence[Span], truths: Sequence[Span], text: str) -> dict[str, float]:
    """Return the metrics of one example that compare answers."""
    golds = [(span,) for span in truths]
    pieces = [_piece(spans, text) for spans in (guesses, *golds)]
    words, *gold_words = map(squad.tokens, pieces)
    letters, *gold_letters = map(squad.characters, pieces)
    places, *gold_places = (_places(spans, text) for spans in (guesses, *golds))
    span_f1 = squad.best(partial(_place_f1, text), places, gold_places)
    return {
        "exact_match": squad.best(squad.exact, words, gold_words),
        "token_f1": squad.best(squad.f1, words, gold_words),
        "char_f1": squad.best(squad.f1, letters, gold_letters),
        "span_exact": float(span_f1 == 1),  # F1 is 1 for the same characters alone
        "span_f1": span_f1,
    }


def token_f1(
    predicted: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> Floats:
    """Return the token F1 of every example; 1 where there is rightly no answer."""
    values = [
        squad.best(squad.f1, _words(guesses, text), [_words([span], text) for span in truths])
        for guesses, truths, text in zip(predicted, true, texts, strict=True)
    ]
    return np.array(values, dtype=np.float64)


def _piece(spans: Iterable[Span], text: str) -> str:
    return " ".join(text[start:end] for start, end in spans)


def _words(spans: Iterable[Span], text: str) -> list[str]:
    return squad.tokens(_piece(spans, text))


def _places(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    """The parts of a text that spans cover; those of white space alone do not count."""
    return merged((span for span in spans if text[slice(*span)].strip()), text)


def _place_f1(text: str, guess: Sequence[Span], gold: Sequence[Span]) -> float:
    """Return the F1 of the characters, white space aside, that two lists of places hold."""
    if not guess or not gold:
        return float(guess == gold)
    both = [(max(a, c), min(b, d)) for a, b in guess for c, d in gold]
    shared = _size([(a, b) for a, b in both if a < b], text)
    return 2 * shared / (_size(guess, text) + _size(gold, text))


def _size(spans: Sequence[Span], text: str) -> int:
    return sum(len(word) for start, end in spans for word in text[start:end].split())
