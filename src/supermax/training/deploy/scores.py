"""Metrics of predictions on rows whose labels or answers are known.

file ──read_truths()──▶ Truth by row ──score()──▶ Scores, with the metrics of a search
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from supermax.training.data.answers import evidence
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.classes import is_number_text
from supermax.training.data.columns import PART_NAMES, Columns
from supermax.training.data.entities import Entity
from supermax.training.data.entities.rows import NamedEntity
from supermax.training.data.entities.tables import known_entities
from supermax.training.data.examples import Example
from supermax.training.data.inputs.reading import read_rows
from supermax.training.data.label_sets import LabelReader, reader_of
from supermax.training.data.rows import Row, plain
from supermax.training.deploy.predictions import PredictedEntity, Prediction
from supermax.training.eval.entity_metrics import entity_metrics
from supermax.training.eval.label_metrics import label_metrics
from supermax.training.eval.metrics import Span, class_metrics, span_metrics
from supermax.training.eval.number_metrics import number_metrics

MOST_SPLITS = 6
"""Splits above which they are not scored separately."""


@dataclass(frozen=True)
class Truth:
    """Label, labels and answer of a row; None: the file has none."""

    label: str | None = None
    spans: tuple[Span, ...] | None = None
    split: str | None = None
    labels: frozenset[str] | None = None
    entities: tuple[NamedEntity, ...] | None = None


@dataclass(frozen=True)
class ClassScore:
    """Metrics of one class, or of one label of sets."""

    label: str
    rows: int
    recall: float
    """Share of the rows of this class that are predicted correctly, or as having this label."""
    f1: float


@dataclass(frozen=True)
class Scores:
    """Metrics of predictions; empty where nothing is known to compare them with."""

    classes: dict[str, float] = field(default_factory=dict)
    """Metrics of `class_metrics`; {} if no row has a label that the model knows."""
    by_class: tuple[ClassScore, ...] = ()
    """Metrics of each class or label that occurs."""
    labelled: int = 0
    """Rows whose label is a class of the model, or whose labels are."""
    unknown: int = 0
    """Rows with a label that the model does not know; they are not scored."""
    spans: dict[str, float] = field(default_factory=dict)
    """Metrics of `span_metrics`; {} if no answers are known."""
    answered: int = 0
    """Rows with a known answer, or known to have none."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Metrics of `number_metrics`; {} if no row has a number."""
    measured: int = 0
    """Rows with a number."""
    label_sets: dict[str, float] = field(default_factory=dict)
    """Metrics of `label_metrics`; {} if no row has known labels."""
    entities: dict[str, float] = field(default_factory=dict)
    """Metrics of `entity_metrics`; {} if no entities are known. f1_0 and so on are of the model's
    types."""
    marked: int = 0
    """Rows whose entities are known."""
    splits: Mapping[str, Scores] = field(default_factory=dict)
    """Scores of each split, if the file names several."""


def read_truths(
    path: str | Path,
    columns: Columns,
    encoding: str | None = None,
    names: tuple[str, ...] = (),
) -> dict[str, Truth]:
    """Return labels and answers by the ids that `read_table` gives the rows.

    An empty label is None, and so are the spans of an answer that is not in its text, and labels
    that cannot be read. `names` are the labels of the model.
    """
    if not columns.labelled and columns.answer is None:
        return {}
    table = read_rows(path, BadRows(), encoding)
    answered = any(_cell(row, columns.answer) != "" for row in table.rows)
    sets = reader_of(table.rows, columns, names, others=True)
    return {
        _cell(row, columns.id) or row.place.id: Truth(
            (_cell(row, columns.label) or None) if sets is None else None,
            _answers(row, columns) if answered else None,
            _split(_cell(row, columns.split)),
            None if sets is None else _labels(row, sets),
        )
        for row in table.rows
    }


def read_entity_truths(
    path: str | Path, columns: Columns, encoding: str | None = None
) -> dict[str, Truth]:
    """Return the entities of the rows where they are known, by the ids of `read_entities`."""
    if columns.label is None:
        return {}
    found = known_entities(path, replace(columns, split=None), encoding)
    splits: dict[str, str | None] = {}
    if columns.split is not None:
        rows = read_rows(path, BadRows(), encoding).rows
        splits = {
            _cell(row, columns.id) or row.place.id: _split(_cell(row, columns.split))
            for row in rows
        }
    return {name: Truth(split=splits.get(name), entities=each) for name, each in found.items()}


def _cell(row: Row, column: str | None) -> str:
    value = row.values.get(column) if column is not None else None
    return "" if value is None else (plain(value) or str(value)).strip()


def _labels(row: Row, sets: LabelReader) -> frozenset[str] | None:
    labels, mistakes = sets.read(row.values)
    return None if labels is None or mistakes else frozenset(labels)


def _split(cell: str) -> str | None:
    return PART_NAMES.get(cell.lower(), cell) or None


def _answers(row: Row, columns: Columns) -> tuple[Span, ...] | None:
    text, starts = plain(row.values.get(columns.text)) or "", columns.answer_start
    answer = row.values.get(columns.answer or "")
    spans, mistakes = evidence(text, answer, row.values.get(starts) if starts else None)
    return None if mistakes else spans


def score(
    predictions: Sequence[Prediction],
    examples: Sequence[Example],
    truths: Mapping[str, Truth],
    label_names: Sequence[str],
) -> Scores:
    """Score the predictions of these examples, of all and of each split.

    Labels or answers for which the model has no head are not scored.
    """
    parts: dict[str, tuple[list[Prediction], list[Example]]] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        if (split := truths.get(example.id, Truth()).split) is not None:
            part = parts.setdefault(split, ([], []))
            part[0].append(prediction)
            part[1].append(example)
    overall = _score(predictions, examples, truths, label_names)
    if not 1 < len(parts) <= MOST_SPLITS:
        return overall
    by_split = {name: _score(*part, truths, label_names) for name, part in parts.items()}
    return replace(overall, splits=by_split)


def _score(
    predictions: Sequence[Prediction],
    examples: Sequence[Example],
    truths: Mapping[str, Truth],
    label_names: Sequence[str],
) -> Scores:
    known = [truths.get(example.id, Truth()) for example in examples]
    class_of = {name: index for index, name in enumerate(label_names)}
    labelled = [
        (class_of.get(truth.label), list(p.probabilities.values()))
        for p, truth in zip(predictions, known, strict=True)
        if p.probabilities is not None and truth.label is not None
    ]
    rows = [(label, values) for label, values in labelled if label is not None]
    answered = [
        (p.spans, truth.spans, example.text)
        for p, truth, example in zip(predictions, known, examples, strict=True)
        if p.spans is not None and truth.spans is not None
    ]
    classes, by_class = _class_scores(rows, label_names)
    pairs = [
        (float(truth.label), p.value)
        for p, truth in zip(predictions, known, strict=True)
        if p.value is not None and truth.label is not None and is_number_text(truth.label)
    ]
    sets = [
        (p, truth.labels)
        for p, truth in zip(predictions, known, strict=True)
        if p.labels is not None and truth.labels is not None
    ]
    if sets:
        return _label_scores(sets, label_names)
    marked = [
        (truth.entities, p.entities)
        for p, truth in zip(predictions, known, strict=True)
        if p.entities is not None and truth.entities is not None
    ]
    return Scores(
        classes,
        by_class,
        labelled=len(rows),
        unknown=len(labelled) - len(rows),
        spans=span_metrics(*zip(*answered, strict=True)) if answered else {},
        answered=len(answered),
        numbers=number_metrics(*zip(*pairs, strict=True)) if pairs else {},
        measured=len(pairs),
        entities=_entity_scores(marked, label_names),
        marked=len(marked),
    )


def _label_scores(
    rows: Sequence[tuple[Prediction, frozenset[str]]], names: Sequence[str]
) -> Scores:
    scored = [(p, true) for p, true in rows if true <= set(names)]
    unknown = len(rows) - len(scored)
    if not scored:
        return Scores(unknown=unknown)
    truth = np.array([[name in true for name in names] for _, true in scored])
    predicted = np.array([[name in (p.labels or ()) for name in names] for p, _ in scored])
    likely = np.array([list((p.probabilities or {}).values()) for p, _ in scored])
    metrics = label_metrics(truth, predicted, likely)
    by_label = tuple(
        ClassScore(name, count, float(predicted[truth[:, i], i].mean()), metrics[f"f1_{i}"])
        for i, name in enumerate(names)
        if (count := int(truth[:, i].sum()))
    )
    return Scores({}, by_label, labelled=len(scored), unknown=unknown, label_sets=metrics)


def _entity_scores(
    rows: Sequence[tuple[tuple[NamedEntity, ...], tuple[PredictedEntity, ...]]],
    names: Sequence[str],
) -> dict[str, float]:
    """Return the metrics; entities of types that the model does not have count as missed."""
    if not rows:
        return {}
    others = {e.type for true, _ in rows for e in true} - set(names)
    types = {name: index for index, name in enumerate([*names, *sorted(others)])}
    true = [[Entity(e.start, e.end, types[e.type]) for e in each] for each, _ in rows]
    found = [[Entity(e.start, e.end, types[e.label]) for e in each] for _, each in rows]
    metrics = entity_metrics(true, found, len(types))
    unknown = {f"f1_{index}" for index in range(len(names), len(types))}
    return {name: value for name, value in metrics.items() if name not in unknown}


def _class_scores(
    rows: Sequence[tuple[int, list[float]]], names: Sequence[str]
) -> tuple[dict[str, float], tuple[ClassScore, ...]]:
    if not rows:
        return {}, ()
    labels = np.array([label for label, _ in rows])
    probabilities = np.array([values for _, values in rows])
    metrics = class_metrics(labels, probabilities)
    by_class = []
    for index, name in enumerate(names):
        rows_of_class = labels == index
        if count := int(rows_of_class.sum()):
            of_class = labels[rows_of_class], probabilities[rows_of_class]
            recall = class_metrics(*of_class)["accuracy"]
            by_class.append(ClassScore(name, count, recall, metrics[f"f1_{index}"]))
    return metrics, tuple(by_class)
