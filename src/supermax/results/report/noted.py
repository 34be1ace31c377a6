"""Notes of a search and a refit in the attributes of a study, validated as they are read.

Any program may set an attribute, and studies of earlier versions have none: everything here may
be empty or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supermax._util.attributes import BASELINES, DATA, REFIT
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.text import clean_text, real

PARTS = ("train", "validation", "test")
OUTCOMES = {
    "exact": "exact match",
    "partial": "partial match",
    "wrong": "wrong span predicted",
    "missed": "answer missed",
    "invented": "span predicted where there is no answer",
    "rejected": "no answer, correctly",
}
"""Labels of the outcomes of span examples."""
NUMBERS = {
    "mean": "mean of the numbers",
    "deviation": "their standard deviation",
    "lowest": "lowest number",
    "highest": "highest number",
}
"""Labels of the statistics of numbers."""


@dataclass(frozen=True)
class CutNote:
    """Number of texts that an encoder truncates at a length."""

    encoder: str
    length: int
    texts: int
    of: int
    sampled: bool


@dataclass(frozen=True)
class DataNote:
    """Numbers about the data."""

    rows: dict[str, int]
    """Rows by split."""
    groups: dict[str, int]
    classes: list[tuple[str, list[int]]]
    """Name of a class, and its rows in each split."""
    spans: list[tuple[str, list[int]]]
    """Examples with and without an answer, in each split."""
    lengths: list[tuple[str, list[int]]]
    """Unit, and median, 95th percentile and maximum."""
    texts: int
    cuts: list[CutNote]
    may_cut: bool
    """True if texts can be truncated; those of span examples are split into windows instead."""
    sets: bool = False
    """True: a text has any number of the classes."""
    numbers: list[tuple[str, list[float | None]]] = field(default_factory=list)
    """Statistic of the numbers to predict, in each split."""
    entities: list[tuple[str, list[int]]] = field(default_factory=list)
    """Type, and its entities in each split."""


@dataclass(frozen=True)
class PredictionCounts:
    """Counts of predictions by true and predicted value."""

    labels: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """Rows: true class; columns: predicted class."""
    spans: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Baselines:
    """Metrics of the baselines on a split, by plain name."""

    trivial: dict[str, float] = field(default_factory=dict)
    tfidf: dict[str, float] = field(default_factory=dict)
    learnt_from: tuple[int, int] = (0, 0)
    """Rows that TF-IDF was fitted on, and rows of the training split."""


@dataclass(frozen=True)
class RefitNote:
    """Results of a refit on the test split."""

    trial: int
    seeds: int
    rows: int
    metrics: dict[str, tuple[float, float | None, float | None]]
    """Mean over seeds and the bounds of its confidence interval, by plain name."""
    counts: PredictionCounts
    cautions: list[str]
    baselines: Baselines
    folder: str = ""
    """Name of the exported model's folder."""
    epochs: int = 0
    learnt_from: int = 0
    """Rows that each seed was trained on."""


def data_note_of(record: StudyRecord) -> DataNote | None:
    """Return the note on the data; None if there is none."""
    kept = record.note(DATA)
    splits = {part: _dict(_dict(kept.get("splits")).get(part)) for part in PARTS}
    if not any(_whole(split.get("rows")) for split in splits.values()):
        return None
    names = [clean_text(str(name)) for name in _list(kept.get("labels"))]
    classes = _by_name(names, splits, "classes")
    sets = any("unlabelled" in split for split in splits.values())
    classes += [("no label", [_whole(splits[part].get("unlabelled")) for part in PARTS])] * sets
    spans = [
        (title, [_whole(_dict(splits[part].get("spans")).get(key)) for part in PARTS])
        for key, title in (("with", "with an answer"), ("without", "without an answer"))
    ]
    numbers = {part: _numbers(splits[part].get("numbers")) for part in PARTS}
    of_numbers = [
        (title, [numbers[part].get(key) for part in PARTS])
        for key, title in NUMBERS.items()
        if any(key in each for each in numbers.values())
    ]
    lengths = [
        (unit, [_whole(found.get(key)) for key in ("median", "p95", "longest")])
        for unit in ("words", "characters")
        if (found := _dict(kept.get(unit)))
    ]
    return DataNote(
        rows={part: _whole(splits[part].get("rows")) for part in PARTS},
        groups={part: _whole(splits[part].get("groups")) for part in PARTS},
        classes=[row for row in classes if any(row[1])],
        spans=[row for row in spans if any(row[1])],
        lengths=lengths,
        texts=_whole(kept.get("texts")),
        cuts=[_cut(_dict(cut)) for cut in _list(kept.get("cut"))],
        may_cut=kept.get("cuts") is True,
        numbers=of_numbers,
        sets=sets,
        entities=[row for row in _by_name(names, splits, "entities") if any(row[1])],
    )


def _by_name(
    names: Sequence[str], splits: Mapping[str, Mapping[str, object]], kind: str
) -> list[tuple[str, list[int]]]:
    """Return each name with its counts of a kind in the splits."""
    return [
        (name, [_at(_list(splits[part].get(kind)), i) for part in PARTS])
        for i, name in enumerate(names)
    ]


def _cut(kept: Mapping[str, object]) -> CutNote:
    return CutNote(
        encoder=clean_text(str(kept.get("encoder"))),
        length=_whole(kept.get("length")),
        texts=_whole(kept.get("texts")),
        of=_whole(kept.get("of")),
        sampled=kept.get("sampled") is True,
    )


def baselines_of(kept: Mapping[str, object]) -> Baselines:
    tfidf = _dict(kept.get("tfidf"))
    return Baselines(
        _numbers(kept.get("trivial")),
        _numbers(tfidf.get("metrics")),
        (_whole(tfidf.get("rows")), _whole(tfidf.get("of"))),
    )


def validation_baselines(record: StudyRecord) -> Baselines:
    return baselines_of(record.note(BASELINES))


def counts_note_of(record: StudyRecord, trial: TrialRecord) -> PredictionCounts:
    """Return the counts on the validation split, at the best epoch of a trial."""
    return _counts(trial.result, _labels(record, trial.labels))


def _labels(record: StudyRecord, known: list[str]) -> list[str]:
    """Return the classes as the note on the data names them: by number where a name could be a
    text of the data."""
    noted = [clean_text(str(name)) for name in _list(record.note(DATA).get("labels"))]
    return noted if len(noted) == len(known) else known


def _counts(kept: Mapping[str, object], labels: list[str]) -> PredictionCounts:
    rows = [_list(row) for row in _list(kept.get("confusion"))]
    matrix = [[_whole(cell) for cell in row] for row in rows]
    square = all(len(row) == len(matrix) for row in matrix)
    if not square or len(labels) != len(matrix):
        matrix = []
    spans = _dict(kept.get("spans"))
    outcomes = [(title, _whole(spans.get(key))) for key, title in OUTCOMES.items()]
    return PredictionCounts(labels, matrix, outcomes if any(n for _, n in outcomes) else [])


def refit_of(record: StudyRecord) -> RefitNote | None:
    """Return the note of the last refit; None if there is none."""
    kept = record.note(REFIT)
    metrics = {}
    for name, values in _dict(kept.get("metrics")).items():
        mean, low, high = (real(_or_none(_list(values), i)) for i in range(3))
        if mean is not None:
            metrics[str(name)] = (mean, low, high)
    if not metrics:
        return None
    labels = next((trial.labels for trial in record.trials if trial.labels), [])
    return RefitNote(
        trial=_whole(kept.get("trial")),
        seeds=_whole(kept.get("seeds")),
        rows=_whole(kept.get("rows")),
        metrics=metrics,
        counts=_counts(_dict(kept.get("counts")), _labels(record, labels)),
        cautions=[clean_text(str(line)) for line in _list(kept.get("cautions"))],
        baselines=baselines_of(kept),
        folder=clean_text(str(kept.get("folder") or "")),
        epochs=_whole(kept.get("epochs")),
        learnt_from=_whole(kept.get("learnt_from")),
    )


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _or_none(values: list[object], i: int) -> object:
    return values[i] if i < len(values) else None


def _at(values: list[object], i: int) -> int:
    return _whole(_or_none(values, i))


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _numbers(value: object) -> dict[str, float]:
    found = {str(name): real(v) for name, v in _dict(value).items()}
    return {name: v for name, v in found.items() if v is not None}
