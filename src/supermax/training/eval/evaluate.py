"""Evaluation of a model on a split: probabilities, answers and all metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.training.config import (
    AnyDecoding,
    Config,
    Decoding,
    LabelDecoding,
    chooses_decoding,
)
from supermax.training.data.examples import Example
from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.data.tokens import NONE, Tokens
from supermax.training.eval.choose_decoding import (
    candidates_of,
    choose,
    options,
    predict_cross_fitted,
)
from supermax.training.eval.decode import (
    Answers,
    SpanLimits,
    decode_spans_within,
    predict_spans,
)
from supermax.training.eval.entities import ScoredEntity, found_entities
from supermax.training.eval.entity_metrics import entity_metrics
from supermax.training.eval.label_metrics import label_metrics
from supermax.training.eval.label_thresholds import cross_fitted, fit_thresholds
from supermax.training.eval.metrics import Span, class_metrics, span_metrics
from supermax.training.eval.number_metrics import number_metrics
from supermax.training.eval.windows import pooled
from supermax.training.models.assembly import Model, Scaling
from supermax.training.steps.batches import Indices
from supermax.training.steps.execution import Execution
from supermax.training.steps.inference import InferenceOutputs, OnProgress, run_inference

Logits = list[NDArray[np.float32]]
"""Logits of a head, one array for each sequence."""


@dataclass(frozen=True)
class Evaluation:
    """Predictions and their metrics."""

    metrics: dict[str, float]
    probabilities: dict[str, list[float]]
    """Probabilities of the classes, or of each label, by the example's id."""
    spans: dict[str, list[Span]]
    """Predicted answers, by the example's id."""
    decoding: AnyDecoding | None = None
    """Settings that decoded the spans or the sets of labels; None: the model has no head for them.

    If this evaluation chose them, then on all rows. Predictions and metrics use cross-fitted
    settings instead, where no row influences its own.
    """
    margins: dict[str, float] = field(default_factory=dict)
    """Margin of each example's best span over no answer, even if no answer is predicted."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Predicted numbers, by the example's id."""
    label_sets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Predicted labels as ascending indices, by the example's id."""
    entities: dict[str, list[ScoredEntity]] = field(default_factory=dict)
    """Predicted entities, by the example's id."""

    @property
    def threshold(self) -> float | None:
        """Threshold of the margin above which an answer is given; None if none was fitted."""
        return None if self.decoding is None else self.decoding.threshold


def evaluate_model(
    model: Model,
    config: Config,
    data: TokenizedSplit,
    pads: tuple[int, ...],
    execution: Execution,
    threshold: float | None = None,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Run inference on a split and evaluate it with decoding settings that are chosen already.

    `threshold` is that of the policy "calibrated". `on_progress` is called with the number of
    sequences that are done and of all sequences.
    """
    outputs = run_inference(model, data, pads, execution, on_progress)
    return evaluation_of(outputs, config, data, threshold=threshold, unit=model.unit)


def evaluation_of(
    outputs: InferenceOutputs,
    config: Config,
    data: TokenizedSplit,
    choose_for: str | None = None,
    threshold: float | None = None,
    unit: Scaling | None = None,
) -> Evaluation:
    """Evaluate inference outputs.

    Decoding settings that the configuration leaves open are chosen on this split, for the metric
    `choose_for`. With None they must be there, and `threshold` is that of "calibrated". `unit` is
    that of a model for numbers, else None.
    """
    classes = _logits((indices, batch.classes) for indices, batch in outputs)
    if unit is not None and classes is not None:
        return _number_evaluation(classes, unit, data, config)
    if agent_of(config.agent).label_sets and classes is not None:
        return _label_evaluation(np.stack(classes), config, data, choose_for)
    if agent_of(config.agent).entities and classes is not None:
        return _entity_evaluation(classes, data)
    starts = _logits((indices, batch.starts) for indices, batch in outputs)
    ends = _logits((indices, batch.ends) for indices, batch in outputs)
    metrics: dict[str, float] = {}
    probabilities: dict[str, list[float]] = {}
    spans: dict[str, list[Span]] = {}
    margins: dict[str, float] = {}
    decoding: Decoding | None = None
    view = data.views[-1]
    if classes is not None:
        rows = [i for i in range(len(view)) if data.examples[view.example[i]].spans is None]
        logits = np.stack([classes[i] for i in rows])
        if config.text.long_texts == "windows":
            first, logits = pooled(logits, view.example[rows], config.text.window_pooling)
            rows = [rows[i] for i in first]
        softmax = torch.from_numpy(logits).softmax(-1).numpy()
        ids = [data.examples[view.example[i]].id for i in rows]
        probabilities = dict(zip(ids, softmax.tolist(), strict=True))
        labels = view.label[rows].astype(np.int64)
        if (labels != NONE).all():
            metrics |= class_metrics(labels, softmax)
    if starts is not None and ends is not None:
        found, examples = _answers(config, data, view, starts, ends)
        answers, predicted, decoding = _decoded(config, found, examples, choose_for, threshold)
        spans = dict(zip(answers.ids, predicted, strict=True))
        margins = dict(zip(answers.ids, answers.margin.tolist(), strict=True))
        truths, texts = [e.spans or () for e in examples], [e.text for e in examples]
        values = span_metrics(predicted, truths, texts)
        # A diverged model predicts no answers: its metrics are NaN, not those of no answer.
        metrics |= values if _finite(view, starts, ends) else dict.fromkeys(values, float("nan"))
    return Evaluation(metrics, probabilities, spans, decoding, margins)


def _number_evaluation(
    outputs: Logits, unit: Scaling, data: TokenizedSplit, config: Config
) -> Evaluation:
    """Return the numbers in the unit of the data, with metrics if the true ones are known."""
    view = data.views[-1]
    standardised: NDArray[np.floating] = np.concatenate(outputs).astype(np.float64)
    rows = np.arange(len(view))
    if config.text.long_texts == "windows":
        rows, standardised = pooled(standardised, view.example, config.text.window_pooling)
    numbers = unit.mean + unit.deviation * standardised
    ids = [data.examples[i].id for i in view.example[rows]]
    is_known = view.label.dtype.kind == "f"
    metrics = number_metrics(view.label[rows], numbers) if is_known else {}
    return Evaluation(metrics, {}, {}, numbers=dict(zip(ids, numbers.tolist(), strict=True)))


def _label_evaluation(
    logits: NDArray[np.float32], config: Config, data: TokenizedSplit, choose_for: str | None
) -> Evaluation:
    """Return the labels of each example, with metrics if the true ones are known."""
    view, given = data.views[-1], config.labels.threshold
    rows = np.arange(len(view))
    if config.text.long_texts == "windows":
        rows, logits = pooled(logits, view.example, config.text.window_pooling)
    examples = [data.examples[i] for i in view.example[rows]]
    truth, is_known = view.label[rows] > 0, not np.isnan(view.label[rows]).any()
    probabilities = torch.from_numpy(logits).double().sigmoid().numpy()
    if given is not None:
        thresholds = np.broadcast_to(np.asarray(given, dtype=np.float64), probabilities.shape)
        chosen = thresholds[0]
    elif choose_for is not None:
        chosen = fit_thresholds(truth, probabilities, choose_for)
        groups = [example.group for example in examples]
        thresholds = cross_fitted(truth, probabilities, choose_for, groups)
    else:
        raise UserError(
            "The configuration leaves labels.threshold open, which is chosen on validation data."
        )
    predicted = probabilities > thresholds
    metrics = label_metrics(truth, predicted, probabilities) if is_known else {}
    ids = [example.id for example in examples]
    return Evaluation(
        metrics,
        dict(zip(ids, probabilities.tolist(), strict=True)),
        {},
        LabelDecoding(tuple(chosen.tolist())),
        label_sets={
            name: tuple(np.flatnonzero(row).tolist())
            for name, row in zip(ids, predicted, strict=True)
        },
    )


def _entity_evaluation(logits: Logits, data: TokenizedSplit) -> Evaluation:
    """Return the entities, with their metrics on those of the examples."""
    types = (logits[0].shape[-1] - 1) // 2
    if not _finite(data.views[-1], logits):  # a diverged model finds nothing
        none: dict[str, list[ScoredEntity]] = {example.id: [] for example in data.examples}
        values = entity_metrics([()], [()], types)
        return Evaluation(dict.fromkeys(values, float("nan")), {}, {}, entities=none)
    found = found_entities(logits, data)
    true = [example.entities or () for example in data.examples]
    predicted = [[each.entity for each in found[example.id]] for example in data.examples]
    return Evaluation(entity_metrics(true, predicted, types), {}, {}, entities=found)


def _decoded(
    config: Config,
    found: list[Answers],
    examples: list[Example],
    choose_for: str | None,
    threshold: float | None,
) -> tuple[Answers, list[list[Span]], Decoding]:
    """Return the best answers, the predicted ones, and the decoding settings.

    `found` has the best answers within each of the configuration's options.
    """
    limits, policy = options(config.decode), config.no_answer
    if choose_for is None or not chooses_decoding(config):
        if len(limits) > 1:
            raise UserError(
                "The configuration leaves decode.n_best or decode.max_answer open, which are "
                "chosen on validation data."
            )
        decoding = Decoding(*limits[0], policy.policy or "calibrated", threshold)
        return found[0], predict_spans(found[0], policy, threshold), decoding
    # The policy "calibrated" has always been fitted on token F1.
    metric = "token_f1" if policy.policy == "calibrated" else choose_for
    truths, texts = [e.spans or () for e in examples], [e.text for e in examples]
    candidates = candidates_of(limits, found, metric, policy, truths, texts)
    decoding = choose(candidates)
    best = limits.index(SpanLimits(decoding.n_best, decoding.max_answer))
    return found[best], predict_cross_fitted(candidates, [e.group for e in examples]), decoding


def _logits(batches: Iterable[tuple[Indices, Tensor | None]]) -> Logits | None:
    """Return a head's logits in the order of the sequences; None without such a head."""
    rows: dict[int, NDArray[np.float32]] = {}
    for indices, logits in batches:  # all batches are launched: only the first copy has to wait
        if logits is None:
            return None
        # A captured batch is padded with rows after the last index.
        rows |= zip(indices.tolist(), logits.float().cpu().numpy(), strict=False)
    return [rows[i] for i in range(len(rows))]


def _finite(view: Tokens, *logits: Logits) -> bool:
    """Return True if the logits of all tokens are finite, ignoring padding."""
    return all(
        np.isfinite(row[:length]).all()
        for rows in logits
        for row, length in zip(rows, view.lengths, strict=True)
    )


def _answers(
    config: Config, data: TokenizedSplit, view: Tokens, starts: Logits, ends: Logits
) -> tuple[list[Answers], list[Example]]:
    """Return the best answers of the span examples within each of the configuration's options, and
    these examples in the same order."""
    windows = [i for i in range(len(view)) if data.examples[view.example[i]].spans is not None]
    padded = (len(windows), int(view.lengths[windows].max()))
    start_logits, end_logits = np.full(padded, -1e9), np.full(padded, -1e9)
    offsets = np.full((*padded, 2), -1, dtype=np.int64)
    for row, i in enumerate(windows):
        length = int(view.lengths[i])
        start_logits[row, :length], end_logits[row, :length] = starts[i][:length], ends[i][:length]
        offsets[row, :length] = view.offsets[view.begin[i] : view.begin[i + 1]]
    owners = [data.examples[view.example[i]] for i in windows]
    ids = [example.id for example in owners]
    limits = options(config.decode)
    found = decode_spans_within(ids, start_logits, end_logits, offsets, limits)
    by_id = dict(zip(ids, owners, strict=True))
    return found, [by_id[name] for name in found[0].ids]
