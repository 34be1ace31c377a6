"""Usual names of columns, by role."""

from __future__ import annotations

NAMES = {
    "text": ("text", "note", "post", "sentence", "content", "body", "document", "message"),
    "label": ("label", "class", "target", "verdict", "status", "category", "y", "outcome"),
    "labels": ("labels", "tags", "classes", "categories", "topics", "emotions", "genres"),
    "number": ("score", "rating", "value", "number", "grade", "stars"),
    "question": ("question", "criterion", "query", "asked", "prompt", "symptom"),
    "answer": (
        "answer", "answers", "answers.text", "evidence", "span", "spans", "highlight", "quote",
    ),
    "answer_start": ("answer_start", "answers.answer_start", "start", "offset"),
    "id": ("id", "row_id", "uid", "key"),
    "group": ("group", "patient", "user", "author", "subject", "post_id", "patient_id", "user_id"),
    "split": ("split", "fold", "part", "partition", "set"),
}  # fmt: skip
PAIRS = (
    ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"),
    ("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("text", "text_pair"),
    ("question1", "question2"), ("premise", "hypothesis"), ("anchor", "positive"),
)  # fmt: skip
"""Names of the two texts of a pair."""


def plain_name(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def is_named(role: str, column: str) -> bool:
    name = plain_name(column)
    return name in NAMES[role] or any(
        name.endswith(f"_{word}") for word in NAMES[role] if role in ("text", "label", "answer")
    )
