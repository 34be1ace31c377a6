"""Predictions, and their serialisation as CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from supermax.training.data.examples import Example
from supermax.training.eval.metrics import Span


@dataclass(frozen=True)
class PredictedEntity:
    """Entity of a text."""

    start: int
    end: int
    """Characters [start, end); those of a list of tokens are counted with one space in between."""
    label: str
    score: float
    """Mean probability of the predicted classes of its words."""


@dataclass(frozen=True)
class Prediction:
    """Prediction for one example; attributes are None if the model has no head for them."""

    id: str
    label: str | None = None
    probabilities: dict[str, float] | None = None
    spans: tuple[Span, ...] | None = None
    """Answers as characters [start, end); (): no answer."""
    score: float | None = None
    """Margin of the best span over no answer, even if no answer is predicted."""
    value: float | None = None
    """Predicted number."""
    labels: tuple[str, ...] | None = None
    """Predicted labels; (): none of them."""
    entities: tuple[PredictedEntity, ...] | None = None
    """Entities of the text; (): none."""


def as_jsonl(predictions: Sequence[Prediction], texts: Sequence[Example] | None) -> str:
    """Return one JSON object a line; with `texts`, also texts, questions and answers."""
    lines = []
    for i, prediction in enumerate(predictions):
        example = None if texts is None else texts[i]
        row = _row(prediction, example)
        if not row.get("question"):
            row.pop("question", None)
        if prediction.probabilities is not None:
            own = prediction.labels
            named = {"label": prediction.label} if own is None else {"labels": list(own)}
            row |= {**named, "probabilities": prediction.probabilities}
        if prediction.value is not None:
            row["value"] = prediction.value
        if prediction.entities is not None:
            row["entities"] = _entities(prediction.entities, example)
        if prediction.spans is not None:
            row |= {"spans": prediction.spans, "score": prediction.score}
            if example is not None:
                row["answers"] = [example.text[a:b] for a, b in prediction.spans]
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def as_csv(predictions: Sequence[Prediction], texts: Sequence[Example] | None) -> str:
    """Return CSV with a column of probabilities for each label, or one of the numbers, or one of
    the entities as JSON.

    `start` and `end` are empty for no answer. Sets of labels are text with a separator that no
    label has, or else JSON. With `texts`, also texts, questions and answers.
    """
    rows = []
    for i, prediction in enumerate(predictions):
        example = None if texts is None else texts[i]
        row = _row(prediction, example)
        if prediction.probabilities is not None:
            if prediction.labels is None:
                row["label"] = prediction.label
            else:
                row["labels"] = _joined(prediction.labels, prediction.probabilities)
            row |= {f"p_{name}": value for name, value in prediction.probabilities.items()}
        if prediction.value is not None:
            row["value"] = prediction.value
        if prediction.entities is not None:
            found = _entities(prediction.entities, example)
            row["entities"] = json.dumps(found, ensure_ascii=False)
        if prediction.spans is not None:
            start, end = prediction.spans[0] if prediction.spans else (None, None)
            row |= {"start": start, "end": end, "score": prediction.score}
            if example is not None:
                row["answer"] = example.text[start:end] if prediction.spans else ""
        rows.append(row)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _joined(labels: Sequence[str], known: Iterable[str]) -> str:
    text = "".join(known)
    mark = next((mark for mark in ";|," if mark not in text), None)
    return json.dumps(list(labels), ensure_ascii=False) if mark is None else mark.join(labels)


def _entities(
    entities: Sequence[PredictedEntity], example: Example | None
) -> list[dict[str, object]]:
    """Return the entities as in JSON; with their texts if those are written."""
    rows = [asdict(entity) for entity in entities]
    if example is not None:
        for row, entity in zip(rows, entities, strict=True):
            row["text"] = example.text[entity.start : entity.end]
    return rows


def _row(prediction: Prediction, example: Example | None) -> dict[str, object]:
    row: dict[str, object] = {"id": prediction.id}
    return row if example is None else row | {"question": example.question, "text": example.text}
