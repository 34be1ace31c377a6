"""Reader of any table as a corpus, by a mapping of its columns.

source ──read_rows()──▶ rows ──_draft()──▶ examples, and a report of every bad row
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from supermax.errors import UserError
from supermax.training.data.answers import evidence
from supermax.training.data.bad_rows import BadRows, OnBad
from supermax.training.data.classes import is_number_text, is_numeric_label, why_no_classes
from supermax.training.data.columns import PART_NAMES, PARTS, Columns, check_columns
from supermax.training.data.encodings import NOT_UTF8, is_encodable
from supermax.training.data.examples import Corpus, Example, Unlabelled
from supermax.training.data.inputs.reading import Source, read_rows
from supermax.training.data.label_sets import LabelReader, check_label_sets, reader_of
from supermax.training.data.places import Place
from supermax.training.data.read_options import ReadOptions
from supermax.training.data.rows import Row, Rows, plain, require, why_not_plain
from supermax.training.data.spans import Span

_LARGEST_NUMBER = 1e100
"""Largest number to learn: sums of the squares of larger ones overflow."""


@dataclass(frozen=True)
class Table:
    """Corpus with the splits that its rows came with."""

    corpus: Corpus
    part_of: dict[str, str]
    """Train, validation or test, by the example's id; empty without such a column."""

    def part(self, name: str) -> Corpus:
        return self.corpus.only(lambda example: self.part_of[example.id] == name)


def read_table(
    path: Source,
    columns: Columns,
    *,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    on_bad: OnBad = "stop",
    encoding: str | None = None,
    numeric: bool = False,
) -> Corpus:
    """Read a corpus, with classes if a label is mapped, and spans if an answer is mapped.

    `path` is a file, a folder, a name of the Hugging Face Hub, a data frame or a dataset, as
    `read_rows` takes them. If neither label nor answer is mapped, the rows are in both lists, for
    prediction. If a label is mapped, rows without one are left out and counted in
    `Corpus.unlabelled`. Bad rows raise one UserError, which counts them by kind and names a few
    by their place; `on_bad="skip"` skips and counts them. `encoding` is that of the file; None
    detects it. With `numeric`, labels are numbers, for the agent `regression`. With
    `columns.several`, they are sets, for the agent `multilabel`.
    """
    options = ReadOptions(name, labels, on_bad, encoding)
    return open_table(path, columns, options, numeric=numeric).corpus


def open_table(
    path: Source, columns: Columns, options: ReadOptions, *, numeric: bool = False
) -> Table:
    """Read a corpus like `read_table`, with the split of each row."""
    known = options.known_labels
    check_columns(columns, known)
    numeric = numeric and columns.label is not None  # else the rows are to be predicted
    if numeric and known:
        raise UserError("data.labels lists classes, but this agent learns numbers: leave it out.")
    bad = BadRows()
    table = read_rows(path, bad, options.encoding)
    columns = options.with_split(columns, table)
    names = () if numeric else known or table.classes.get(columns.label or "", ())
    sets = reader_of(table.rows, columns, names)
    names = columns.labels or names
    mapped = columns.mapped()
    reading = _Reading(columns, mapped, names, table.file, bad, numeric=numeric, sets=sets)
    drafts: list[_Draft] = []
    if require(table, columns.used, bad):
        drafts = [draft for row in table.rows if (draft := _draft(row, reading)) is not None]
    skipped = bad.settle(options.on_bad, len(drafts), table.file)
    unlabelled: tuple[Unlabelled, ...] = ()
    if columns.labelled:
        unlabelled = _unlabelled(drafts, table.file)
        drafts = [draft for draft in drafts if draft.is_labelled]
        if sets is not None:
            names = names or _names_of(drafts)
            found = [draft.labels or () for draft in drafts]
            check_label_sets(found, names, f"{table.file}: {sets.where}", listed=bool(known))
        elif numeric:
            _check_numbers(drafts, columns, table.file)
        else:
            _check_labels(drafts, columns, names, table.file)
    corpus = replace(
        _numeric_corpus(drafts)
        if numeric
        else _corpus(drafts, columns, names)
        if sets is None
        else _corpus_of_sets(drafts, names),
        name=options.name or table.name,
        skipped=skipped,
        unlabelled=unlabelled,
        detected=options.detected(table),
        remarks=table.remarks,
    )
    return Table(corpus, {draft.example.id: draft.part for draft in drafts if draft.part})


def unlabelled_examples(
    table: Rows, columns: Columns, bad: BadRows
) -> Iterator[tuple[Place, Example, str]]:
    """Yield place, example and split of each good row, without its label. The table has all
    columns."""
    reading = _Reading(columns, columns.mapped(), (), table.file, bad)
    for row in table.rows:
        if (draft := _draft(row, reading)) is not None:
            yield row.place, draft.example, draft.part


def _corpus(drafts: list[_Draft], columns: Columns, known: tuple[str, ...]) -> Corpus:
    names = known or tuple(sorted({d.label for d in drafts if d.label}, key=_by_number))
    class_of = {label: index for index, label in enumerate(names)}
    examples = tuple(replace(d.example, label=class_of.get(d.label)) for d in drafts)
    unknown = columns.label is None and columns.answer is None
    return Corpus(
        "",
        names,
        classes=examples if columns.label is not None or unknown else (),
        spans=examples if columns.answer is not None or unknown else (),
    )


def _numeric_corpus(drafts: list[_Draft]) -> Corpus:
    numbers = tuple(replace(draft.example, value=float(draft.label)) for draft in drafts)
    return Corpus("", (), numbers=numbers)


def _corpus_of_sets(drafts: list[_Draft], names: tuple[str, ...]) -> Corpus:
    index = {name: position for position, name in enumerate(names)}
    examples = tuple(
        replace(draft.example, labels=tuple(sorted(index[name] for name in draft.labels or ())))
        for draft in drafts
    )
    return Corpus("", names, label_sets=examples)


def _names_of(drafts: list[_Draft]) -> tuple[str, ...]:
    found = {name for draft in drafts for name in draft.labels or ()}
    return tuple(sorted(found, key=_by_number))


@dataclass(frozen=True)
class _Reading:
    columns: Columns
    mapped: dict[str, str]
    labels: tuple[str, ...]
    file: str
    bad: BadRows
    place_of: dict[str, Place] = field(default_factory=dict)
    """First place of each id."""
    part_of: dict[str, str] = field(default_factory=dict)
    """Split of each group."""
    numeric: bool = False
    """Labels are numbers."""
    sets: LabelReader | None = None
    """Reader of sets of labels; None: a row has one label or none."""


@dataclass(frozen=True)
class _Draft:
    """Example whose label is still a name."""

    example: Example
    label: str
    part: str
    labels: tuple[str, ...] | None = None
    """Set of labels; None: the row has none, or one label."""

    @property
    def is_labelled(self) -> bool:
        return bool(self.label) or self.labels is not None


def _draft(row: Row, reading: _Reading) -> _Draft | None:
    """Return the example of a row; None if it is bad. All of its mistakes are reported."""
    columns, before = reading.columns, len(reading.bad.found)
    cells = {role: row.cell(column) for role, column in reading.mapped.items()}
    given = cells.get("id", "").strip()
    for what, detail in _mistakes(row, cells, reading):
        reading.bad.add(row.place, what, detail, id=given)
    label = "" if reading.sets is not None else cells.get("label", "").strip()
    labels = _labels(row, reading, given)
    if label and reading.labels and label not in reading.labels:
        what = f"the label is none of {_few(reading.labels)}"
        reading.bad.add(row.place, what, id=given, advice=_ALL_LABELS)
    if label and reading.numeric and not is_number_text(label):
        what = f"the column {reading.mapped['label']!r} holds no number"
        advice = _DECIMAL_POINT if is_number_text(label.replace(",", ".", 1)) else ""
        reading.bad.add(row.place, what, id=given, advice=advice)
    text = cells["text"]
    spans = _spans(row, text, reading, given) if columns.answer is not None else None
    group = cells.get("group", "").strip() or f"text-{_digest(text)}"
    _remember(row, given, cells, reading)
    if len(reading.bad.found) > before:
        return None
    example = Example(given or row.place.id, group, text, cells.get("question", ""), None, spans)
    part = PART_NAMES[cells["split"].strip().lower()] if "split" in cells else ""
    return _Draft(example, label, part, labels)


def _labels(row: Row, reading: _Reading, given: str) -> tuple[str, ...] | None:
    """Return the set of labels of a row; mistakes in it are reported."""
    if reading.sets is None:
        return None
    labels, mistakes = reading.sets.read(row.values)
    for what in mistakes:
        reading.bad.add(row.place, what, id=given)
    return labels


def _mistakes(row: Row, cells: dict[str, str], reading: _Reading) -> Iterator[tuple[str, str]]:
    for role in ("text", "question", "label", "id", "group"):
        if role not in cells or (role == "label" and reading.sets is not None):
            continue
        if plain(row.values.get(reading.mapped[role])) is None:
            yield f"the {role} is {why_not_plain(row.values[reading.mapped[role]])}", ""
        elif not cells[role].strip():
            if role != "label":  # a row without a label is for prediction
                yield f"the {role} is missing", ""
        elif not is_encodable(cells[role]):
            yield NOT_UTF8, f": the {role} holds half a character"
    part = cells.get("split", "train").strip().lower()
    if part not in PART_NAMES:
        yield f"the split is none of {', '.join(PARTS)}", ""


_DECIMAL_POINT = "Write decimal points: 3.5 instead of 3,5."
_ALL_LABELS = "Remove data.labels to take all labels of the file, or list every one of them."


def _few(labels: tuple[str, ...]) -> str:
    return ", ".join(labels) if len(labels) <= 12 else f"the {len(labels)} that were given"


def _remember(row: Row, given: str, cells: dict[str, str], reading: _Reading) -> None:
    """Report an id that occurs twice, and a group with rows in two splits.

    A text may be in two splits: `shared_texts` counts these for a notice.
    """
    if given and (first_place := reading.place_of.setdefault(given, row.place)) != row.place:
        first = f" (first in {first_place.within(row.place)})"
        reading.bad.add(row.place, "the id occurs twice", first, id=given)
    part = PART_NAMES.get(cells.get("split", "").strip().lower())
    group = cells.get("group", "").strip()
    if part and group and reading.part_of.setdefault(group, part) != part:
        what = "rows of its group are in another split"
        reading.bad.add(row.place, what, id=given)


def _spans(row: Row, text: str, reading: _Reading, given: str) -> tuple[Span, ...]:
    """Return the spans of a row's answers; mistakes in them are reported."""
    answer, start = reading.columns.answer, reading.columns.answer_start
    starts = row.values.get(start) if start else None
    spans, mistakes = evidence(text, row.values.get(answer or ""), starts)
    for what in mistakes if text.strip() else ():
        reading.bad.add(row.place, what, id=given)
    return spans


def _unlabelled(drafts: list[_Draft], file: str) -> tuple[Unlabelled, ...]:
    counts = Counter(draft.part for draft in drafts if not draft.is_labelled)
    return tuple(Unlabelled(file, rows, part) for part, rows in sorted(counts.items()))


def _check_labels(
    drafts: list[_Draft], columns: Columns, known: tuple[str, ...], file: str
) -> None:
    """Raise UserError if the labels cannot be classes."""
    names = {draft.label for draft in drafts}
    if not names:
        raise UserError(
            f"{file}: no row has a label in the column {columns.label!r}, so there is nothing to "
            f"learn from. Fill it in, or map another column as label."
        )
    if len(names) < 2:
        raise UserError(f"{file}: all rows have the same label; classes need at least two.")
    if not known and (reason := why_no_classes(draft.label for draft in drafts)):
        raise UserError(f"{file}: the column {columns.label!r} {reason}.")


def _check_numbers(drafts: list[_Draft], columns: Columns, file: str) -> None:
    """Raise UserError if there is nothing to learn from the numbers."""
    numbers = {float(draft.label) for draft in drafts}
    if len(numbers) < 2:
        raise UserError(
            f"{file}: the column {columns.label!r} holds fewer than two different numbers, so "
            f"there is nothing to learn from. Map another column as label."
        )
    if max(map(abs, numbers)) > _LARGEST_NUMBER:
        raise UserError(
            f"{file}: the column {columns.label!r} holds numbers beyond {_LARGEST_NUMBER:g}: "
            f"squared errors overflow. Correct them, or write them in a larger unit."
        )


def _by_number(label: str) -> tuple[float, str]:
    """Return a key that sorts numbers first, in numerical order."""
    return (float(label) if is_numeric_label(label) else math.inf), label


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
