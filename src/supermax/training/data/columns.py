"""Which column of a table holds what."""

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
    """Which column holds what; None: there is no such column.

    Without `id`, rows are named by file and line; without `group`, rows with the same text are
    a group. A row with an empty `label` is there to be predicted, and left out. `answer` is the
    evidence as it stands in the text (in JSONL also a list of pieces), empty where there is none;
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
    """Train, validation or test, where the rows come split: see `read_splits`."""

    def mapped(self) -> dict[str, str]:
        """Role and column of all that is mapped."""
        roles = {f.name: getattr(self, f.name) for f in fields(self)}
        return {role: column for role, column in roles.items() if column is not None}


def check_columns(columns: Columns, labels: tuple[str, ...]) -> None:
    """One UserError with all that cannot be meant."""
    wrong = []
    mapped = columns.mapped()
    for secret in _TEXTS:
        for role, column in mapped.items():
            if role not in _TEXTS and column == mapped.get(secret):
                wrong.append(f"{column!r} is mapped as {secret} and as {role}; {_MAY_BE_SHOWN}")
    if columns.answer_start and not columns.answer:
        wrong.append("answer_start is mapped without answer, so where evidence ends is unknown")
    if len(set(labels)) < len(labels) or "" in labels:
        wrong.append("labels holds an empty label or the same one twice")
    if len(labels) == 1:
        wrong.append("labels holds only one label; classes need at least two")
    if wrong:
        raise UserError("\n  - ".join(["The columns cannot be mapped so:", *wrong]))


_MAY_BE_SHOWN = "what names a row may be shown, and texts never are"
