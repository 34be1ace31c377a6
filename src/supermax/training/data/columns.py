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

    def mapped(self) -> dict[str, str]:
        roles = {f.name: getattr(self, f.name) for f in fields(self)}
        return {role: column for role, column in roles.items() if column is not None}


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
    if wrong:
        raise UserError("\n  - ".join(["The columns cannot be mapped like this:", *wrong]))


_MAY_BE_SHOWN = "names of rows are shown in messages, and texts must never be"
