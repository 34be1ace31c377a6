"""Metrics of classes and spans, by name; others are in `number_metrics.py`, `label_metrics.py` and
`entity_metrics.py`.

All values here lie between 0 and 1, except mcc (-1 to 1). NaN means that the data does not define
the value (an AUROC without positives), or that the model's probabilities are not finite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from supermax._util.attributes import COSTS
from supermax._util.text import ended, nearest
from supermax.agents import agent_of
from supermax.agents.agent import CLASSES, ENTITIES, LABEL_SETS, NUMBERS, SPANS, TARGETS, Target
from supermax.errors import UserError
from supermax.training.data.spans import Span as Span
from supermax.training.data.spans import merged
from supermax.training.eval import squad

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ECE_BINS = 15
"""Bins of the expected calibration error."""
_SPAN_VERSION = 2
"""Version of the span metrics.

1: by the words that spans touch; calibrated thresholds are evaluated on the rows they were fitted
on. 2: by the rules of SQuAD 2.0; calibrated thresholds are cross-fitted.
"""


@dataclass(frozen=True)
class Metric:
    """Metric of the predictions for a target."""

    name: str
    higher: bool
    """True: higher is better."""
    target: Target
    """Agents with this target have it."""
    version: int = 1
    """Version of its definition. Values of two versions cannot be compared."""
    also: tuple[Target, ...] = ()
    """Further targets with a metric of this name."""

    def measures(self, targets: Collection[Target]) -> bool:
        """Return True if it is a metric of one of the targets."""
        return any(target in targets for target in (self.target, *self.also))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(
            Metric(name, True, CLASSES, also=(LABEL_SETS,))
            for name in ("macro_f1", "precision", "recall", "accuracy", "auprc")
        ),
        *(Metric(name, True, CLASSES) for name in ("auroc", "mcc")),
        Metric("micro_f1", True, LABEL_SETS),
        Metric("ece", False, CLASSES),
        *(
            Metric(name, True, SPANS, _SPAN_VERSION)
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
        *(Metric(name, name != "rmse", NUMBERS) for name in ("spearman", "pearson", "rmse", "r2")),
        *(
            Metric(name, True, ENTITIES)
            for name in ("entity_f1", "entity_precision", "entity_recall")
        ),
    )
}
"""Metrics by name, without the F1 of each class or type of entities: f1_0, f1_1, …"""


def check_metric(name: str, agent: str | None = None, classes: int | None = None) -> Metric:
    """Return the metric of that name.

    Raises UserError if there is none, or none for the agent or the number of classes.
    """
    targets = TARGETS if agent is None else agent_of(agent).targets
    known = [m.name for m in METRICS.values() if m.measures(targets)]
    metric = METRICS.get(name)
    if metric is None and (single := re.fullmatch(r"f1_(0|[1-9][0-9]*)", name)):
        metric = Metric(name, True, CLASSES, also=(LABEL_SETS, ENTITIES))
        if classes is not None and int(single[1]) >= classes:
            raise UserError(
                f"There is no metric {name!r}: the classes have f1_0 to f1_{classes - 1}."
            )
    if metric is None:
        near = nearest(name, [*known, *COSTS]) or f"; there are {', '.join((*known, *COSTS))}"
        raise UserError(ended(f"There is no metric {name!r}{near}"))
    if not metric.measures(targets):
        raise UserError(f"The agent {agent} has no metric {name!r}; it has {', '.join(known)}.")
    return metric


def class_metrics(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> dict[str, float]:
    """Return every class metric, from true classes [N] and probabilities [N, C].

    Means over classes include those that occur among labels or predictions.
    """
    truth = np.asarray(labels, dtype=np.int64)
    p = np.asarray(probabilities, dtype=np.float64)
    if len(truth) == 0:
        raise UserError("There are no labelled examples to measure the classes on.")
    values = {
        **_from_confusion(confusion_matrix(truth, p).astype(np.float64)),
        "auroc": _over_classes(_auroc, truth, p),
        "auprc": _over_classes(_average_precision, truth, p),
        "ece": _ece(truth == p.argmax(1), p.max(1)),
    }
    # The argmax of NaN is no prediction: a diverged model has no metrics, not low ones.
    return values if np.isfinite(p).all() else dict.fromkeys(values, float("nan"))


def confusion_matrix(labels: Ints, probabilities: Floats) -> Ints:
    """Return the numbers of examples by true class (rows) and predicted class (columns)."""
    matrix = np.zeros((probabilities.shape[1],) * 2, dtype=np.int64)
    np.add.at(matrix, (labels, probabilities.argmax(1)), 1)
    return matrix


def _from_confusion(confusion: Floats) -> dict[str, float]:
    hits, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    f1 = _ratio(2 * hits, true + predicted)
    occurs = true + predicted > 0
    total = confusion.sum()
    # Multi-class MCC (Gorodkin 2004).
    covariance = hits.sum() * total - true @ predicted
    variances = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return {
        "macro_f1": float(f1[occurs].mean()),
        **{f"f1_{i}": float(value) for i, value in enumerate(f1)},
        "precision": float(_ratio(hits, predicted)[occurs].mean()),
        "recall": float(_ratio(hits, true)[occurs].mean()),
        "accuracy": float(hits.sum() / total),
        "mcc": float(covariance / np.sqrt(variances)) if variances > 0 else 0.0,
    }


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the ratio; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _over_classes(measure: Callable[[Bools, Floats], float], truth: Ints, p: Floats) -> float:
    """Return the measure of class 1 of two, or the mean of the one-versus-rest measures that are
    defined."""
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    values = np.array([measure(truth == c, p[:, c]) for c in classes])
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _cumulative(positive: Bools, scores: Floats) -> tuple[Floats, Floats]:
    """Return the numbers of positives and negatives with at least each score, highest first."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    hits = np.cumsum(positive[order])[last].astype(np.float64)
    return hits, last + 1 - hits


def _auroc(positive: Bools, scores: Floats) -> float:
    if positive.all() or not positive.any():
        return float("nan")
    hits, false = _cumulative(positive, scores)
    hits, false = np.append(0, hits), np.append(0, false)
    return float(np.trapezoid(hits / hits[-1], false / false[-1]))


def _average_precision(positive: Bools, scores: Floats) -> float:
    if not positive.any():
        return float("nan")
    hits, false = _cumulative(positive, scores)
    return float((np.diff(hits, prepend=0) * hits / (hits + false)).sum() / hits[-1])


def _ece(correct: Bools, confidence: Floats) -> float:
    """Return the expected calibration error over equal bins (0, 1/15], …, (14/15, 1]."""
    finite = np.nan_to_num(confidence)
    bins = np.clip(np.ceil(finite * ECE_BINS).astype(np.int64) - 1, 0, ECE_BINS - 1)
    gaps = np.bincount(bins, weights=correct - finite, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(correct))


def span_metrics(
    predicted: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> dict[str, float]:
    """Return every span metric, each a mean over examples.

    Every true span of an example is a correct answer by itself, and the best match counts. The
    pieces of a prediction with several spans are compared together.

    exact_match, token_f1: the answer's text, by the rules of SQuAD 2.0 (`squad.py`). char_f1: the
    F1 of its characters, without white space and punctuation. span_exact: the same position in
    the text, ignoring white space at the ends; span_f1: the F1 of character positions.
    null_accuracy: the accuracy of predicting that there is an answer; has_answer_f1: token_f1 of
    the examples that have one.
    """
    if not texts:
        raise UserError("There are no examples to measure the spans on.")
    rows = [_scores(*row) for row in zip(predicted, true, texts, strict=True)]
    values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    has_answer = np.array([bool(spans) for spans in true])
    answered = np.array([bool(spans) for spans in predicted])
    return {
        **{name: float(each.mean()) for name, each in values.items()},
        "null_accuracy": float((has_answer == answered).mean()),
        "has_answer_f1": (
            float(values["token_f1"][has_answer].mean()) if has_answer.any() else np.nan
        ),
    }


def _scores(guesses: Sequence[Span], truths: Sequence[Span], text: str) -> dict[str, float]:
    """Return the metrics of one example that compare answers."""
    golds = [(span,) for span in truths]
    pieces = [_piece(spans, text) for spans in (guesses, *golds)]
    words, *gold_words = map(squad.tokens, pieces)
    letters, *gold_letters = map(squad.characters, pieces)
    positions, *gold_positions = (_positions(spans, text) for spans in (guesses, *golds))
    span_f1 = squad.best_score(partial(_position_f1, text), positions, gold_positions)
    return {
        "exact_match": squad.best_score(squad.exact, words, gold_words),
        "token_f1": squad.best_score(squad.f1, words, gold_words),
        "char_f1": squad.best_score(squad.f1, letters, gold_letters),
        "span_exact": float(span_f1 == 1),  # F1 is 1 for the same characters alone
        "span_f1": span_f1,
    }


def token_f1(
    predicted: Sequence[Sequence[Span]], true: Sequence[Sequence[Span]], texts: Sequence[str]
) -> Floats:
    """Return the token F1 of each example; 1 for one that rightly has no answer."""
    values = [
        squad.best_score(
            squad.f1, _words(guesses, text), [_words([span], text) for span in truths]
        )
        for guesses, truths, text in zip(predicted, true, texts, strict=True)
    ]
    return np.array(values, dtype=np.float64)


def decoding_objective(objective: str, agent: str) -> str:
    """Return the metric that spans and sets of labels are decoded for: the objective, or token F1
    if the agent finds spans and it is none of them."""
    if agent_of(agent).label_sets:
        return objective
    metric = METRICS.get(objective)
    return objective if metric is not None and metric.target == SPANS else "token_f1"


def answer_values(
    metric: str, guesses: Iterable[Sequence[Span]], true: Sequence[Span], text: str
) -> list[float]:
    """Return the metric of one example for each of several predictions, as `span_metrics` computes
    it; 0 if the example is none of the metric's."""
    if metric == "null_accuracy":
        return [float(bool(guess) == bool(true)) for guess in guesses]
    if metric == "has_answer_f1" and not true:
        return [0.0 for _ in guesses]
    golds = [(span,) for span in true]
    if metric in ("span_f1", "span_exact"):
        places = [_positions(spans, text) for spans in golds]
        f1 = partial(_position_f1, text)
        values = [squad.best_score(f1, _positions(spans, text), places) for spans in guesses]
        return values if metric == "span_f1" else [float(value == 1) for value in values]
    split = squad.characters if metric == "char_f1" else squad.tokens
    parts = [split(_piece(spans, text)) for spans in golds]
    score: Callable[[Sequence[str], Sequence[str]], float]
    score = squad.exact if metric == "exact_match" else squad.f1
    return [squad.best_score(score, split(_piece(spans, text)), parts) for spans in guesses]


def _piece(spans: Iterable[Span], text: str) -> str:
    return " ".join(text[start:end] for start, end in spans)


def _words(spans: Iterable[Span], text: str) -> list[str]:
    return squad.tokens(_piece(spans, text))


def _positions(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    """Return the merged spans without those of white space alone."""
    return merged((span for span in spans if text[slice(*span)].strip()), text)


def _position_f1(text: str, guess: Sequence[Span], gold: Sequence[Span]) -> float:
    """Return the F1 of the character positions of two lists of spans, ignoring white space."""
    if not guess or not gold:
        return float(guess == gold)
    both = [(max(a, c), min(b, d)) for a, b in guess for c, d in gold]
    shared = _size([(a, b) for a, b in both if a < b], text)
    return 2 * shared / (_size(guess, text) + _size(gold, text))


def _size(spans: Sequence[Span], text: str) -> int:
    """Count the characters of spans, without white space."""
    return sum(len(word) for start, end in spans for word in text[start:end].split())
