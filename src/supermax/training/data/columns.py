"""Mapping from roles (text, label, …) to the columns of a table."""

from __future__ import annotations

from dataclasses import dataclass, fields

from supermax.errors import UserError

PARTS = ("train", "validation", "test")
PART_NAMES = {part: part for part in PARTS} | {
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
}
_TEXTS = ("text", "question", "answer")
_NO_ROLES = ("several", "labels", "label_separator")


@dataclass(frozen=True)
class Columns:
    """Column of each role; None: there is no such column.

    Without `id`, rows are named by file and line; without `group`, rows with the same text are
    a group. A row with an empty `label` is for prediction, and not trained on. `answer` is a piece
    of the text, word for word (in JSONL also a list of pieces), and empty for no answer.
    `answer_start` is its first character, counted from 0.
    """

    text: str
    question: str | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None
    answer: str | None = None
    answer_start: str | None = None
    split: str | None = None
    """Column with train, validation or test, if the data comes with its splits (`read_splits`)."""
    several: bool = False
    """Rows have sets of labels, for the agent multilabel: in `label` as a list or as text with a
    separator, or in `labels`."""
    labels: tuple[str, ...] | None = None
    """Columns of 0 and 1, one for each label, whose names are the labels."""
    label_separator: str | None = None
    """Text between the labels of a cell; None: detected."""

    def mapped(self) -> dict[str, str]:
        """Return the column of each role that has one."""
        roles = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_ROLES}
        return {role: column for role, column in roles.items() if column is not None}

    @property
    def used(self) -> tuple[str, ...]:
        """Columns of all roles, and those of the labels."""
        return (*self.mapped().values(), *(self.labels or ()))

    @property
    def labelled(self) -> bool:
        """True: rows have a label, or labels."""
        return self.label is not None or bool(self.labels)


def check_columns(columns: Columns, labels: tuple[str, ...]) -> None:
    """Raise one UserError with all mistakes in the mapping."""
    wrong = []
    mapped = columns.mapped()
    for secret in _TEXTS:
        for role, column in mapped.items():
            if role not in _TEXTS and column == mapped.get(secret):
                wrong.append(f"{column!r} is mapped as {secret} and as {role}; {_MAY_BE_SHOWN}")
    if columns.answer_start and not columns.answer:
        wrong.append("answer_start is mapped without answer, so the end of the answer is unknown")
    if len(set(labels)) < len(labels) or "" in labels:
        wrong.append("labels holds an empty label or the same one twice")
    if len(labels) == 1:
        wrong.append("labels holds only one label; classes need at least two")
    wrong += _wrong_sets(columns, labels)
    if wrong:
        raise UserError("\n  - ".join(["The columns cannot be mapped like this:", *wrong]))


def _wrong_sets(columns: Columns, labels: tuple[str, ...]) -> list[str]:
    """Return the mistakes in the columns of sets of labels."""
    own = columns.labels or ()
    wrong = []
    if own and not columns.several:
        wrong.append("columns of labels are mapped, which only the agent multilabel learns from")
    if columns.label_separator and (own or not columns.several):
        wrong.append("label_separator is for the column label of the agent multilabel alone")
    if own and columns.label is not None:
        wrong.append("a column is mapped as label, and others as labels: leave one of both out")
    if own and labels:
        wrong.append(
            "labels are listed, but the names of the mapped columns are the labels: leave "
            "data.labels out"
        )
    mapped = [*columns.mapped().values(), *own]
    if twice := sorted({name for name in own if mapped.count(name) > 1}):
        wrong.append(f"{', '.join(map(repr, twice))} is mapped twice")
    if len(own) == 1:
        wrong.append("only one column of labels is mapped; sets of labels need at least two")
    return wrong


_MAY_BE_SHOWN = "names of rows are shown in messages, and texts must never be"
