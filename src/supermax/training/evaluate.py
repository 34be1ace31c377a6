"""What a model makes of a split: probabilities, answers, and every metric of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from supermax.training.config import Config
from supermax.training.data.examples import Example
from supermax.training.decode import Answers, calibrate, cross_fit, decode, gains, predict
from supermax.training.looking import Looks, Told, look
from supermax.training.metrics import Floats, Span, class_metrics, span_metrics
from supermax.training.models import Model
from supermax.training.steps import Execution
from supermax.training.tokens import NONE, Tokens

if TYPE_CHECKING:
    from supermax.training.prepare import Data, Prepared


@dataclass(frozen=True)
class Evaluation:
    """Predictions and their metrics."""

    metrics: dict[str, float]
    probabilities: dict[str, list[float]]
    spans: dict[str, list[Span]]
    threshold: float | None = None
    """Threshold of the policy "calibrated". Where it was found on this split, it is fitted on all
    rows; spans and metrics are by cross-fitted thresholds: no row has a part in its own."""
    margins: dict[str, float] = field(default_factory=dict)
    """By how much each example's best span beats no answer, whether it was given or not."""


def evaluate(prepared: Prepared, data: Data | None = None) -> Evaluation:
    """The model on its validation split, or on another; the model is left in evaluation mode."""
    passes = prepared.config.train.epochs if data is None else 1
    data = data or prepared.validation
    return _evaluation(prepared.way.look(data, passes), prepared.config, data)


def evaluate_model(
    model: Model,
    config: Config,
    data: Data,
    pads: tuple[int, ...],
    execution: Execution,
    threshold: float | None = None,
    told: Told | None = None,
) -> Evaluation:
    """With a `threshold`, answers are judged by it; otherwise the policy finds its own here.
    `told` hears how many sequences are done, and of how many."""
    return _evaluation(look(model, data, pads, execution, told), config, data, threshold)


def _evaluation(
    looks: Looks, config: Config, data: Data, threshold: float | None = None
) -> Evaluation:
    classes, starts, ends = _logits(looks, len(data.views[-1]))
    metrics: dict[str, float] = {}
    probabilities: dict[str, list[float]] = {}
    spans: dict[str, list[Span]] = {}
    margins: dict[str, float] = {}
    view = data.views[-1]
    if classes is not None:
        asked = [i for i in range(len(view)) if data.examples[view.example[i]].spans is None]
        softmax = torch.from_numpy(classes[asked]).softmax(-1).numpy()
        names = [data.examples[view.example[i]].id for i in asked]
        probabilities = dict(zip(names, softmax.tolist(), strict=True))
        labels = view.label[asked]
        if (labels != NONE).all():
            metrics |= class_metrics(labels, softmax)
    if starts is not None and ends is not None:
        answers, examples = _answers(config, data, view, starts, ends)
        truths, texts = [e.spans or () for e in examples], [e.text for e in examples]
        used: float | Floats | None = threshold
        if config.no_answer.policy == "calibrated" and threshold is None:
            margin, gain = answers.margin, gains(answers, truths, texts)
            threshold = calibrate(margin, gain)
            used = cross_fit(margin, gain, [e.group for e in examples])
        given = predict(answers, config.no_answer, used)
        spans = dict(zip(answers.ids, given, strict=True))
        margins = dict(zip(answers.ids, answers.margin.tolist(), strict=True))
        found = span_metrics(given, truths, texts)
        # A model that diverged answers nothing, and has no score, not that of answering nothing.
        metrics |= found if _finite(view, starts, ends) else dict.fromkeys(found, float("nan"))
    return Evaluation(metrics, probabilities, spans, threshold, margins)


def _logits(
    looks: Looks, count: int
) -> tuple[NDArray[Any] | None, list[Any] | None, list[Any] | None]:
    """Class logits by sequence, and each sequence's start and end logits."""
    rows: list[Any] = [None] * count
    for indices, outputs in looks:  # all asked for, before the device is waited for
        parts = [
            None if part is None else part.float().cpu().numpy()
            for part in (outputs.classes, outputs.starts, outputs.ends)
        ]
        for place, i in enumerate(indices):
            rows[i] = tuple(None if part is None else part[place] for part in parts)
    classes = None if rows[0][0] is None else np.stack([row[0] for row in rows])
    if rows[0][1] is None:
        return classes, None, None
    return classes, [row[1] for row in rows], [row[2] for row in rows]


def _finite(view: Tokens, *logits: list[Any]) -> bool:
    """Tell whether the logits of all tokens are finite; those of padding do not count."""
    return all(
        np.isfinite(row[:length]).all()
        for rows in logits
        for row, length in zip(rows, view.lengths, strict=True)
    )


def _answers(
    config: Config, data: Data, view: Tokens, starts: list[Any], ends: list[Any]
) -> tuple[Answers, list[Example]]:
    """The answers of the examples in which spans are sought, and these examples."""
    sought = [i for i in range(len(view)) if data.examples[view.example[i]].spans is not None]
    width = int(view.lengths[sought].max())
    shape = (len(sought), width)
    wide_starts, wide_ends = np.full(shape, -1e9), np.full(shape, -1e9)
    offsets = np.full((*shape, 2), -1, dtype=np.int64)
    for row, i in enumerate(sought):
        length = int(view.lengths[i])
        wide_starts[row, :length], wide_ends[row, :length] = starts[i][:length], ends[i][:length]
        offsets[row, :length] = view.offsets[view.begin[i] : view.begin[i + 1]]
    owners = [data.examples[view.example[i]] for i in sought]
    answers = decode([e.id for e in owners], wide_starts, wide_ends, offsets, config.decode)
    by_id = {e.id: e for e in owners}
    return answers, [by_id[name] for name in answers.ids]
