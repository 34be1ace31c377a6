"""Answers of a row as spans of its text, with or without given start positions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from supermax.training.data.rows import plain
from supermax.training.data.spans import Span, find_span


def evidence(text: str, answers: object, starts: object) -> tuple[tuple[Span, ...], list[str]]:
    """Return the spans of the answers in the text, and the mistakes in them.

    `answers` is one answer or a list, with as many starts or none; an empty answer has no span.
    Each answer of a list is correct by itself, as in SQuAD: overlapping spans are not merged.
    """
    spans, mistakes = [], []
    for span, mistake in _spans(text, _as_list(answers), _as_list(starts)):
        if span is not None:
            spans.append(span)
        elif mistake not in mistakes:
            mistakes.append(mistake)
    return tuple(sorted(set(spans))), mistakes


def _spans(
    text: str, answers: list[object], starts: list[object]
) -> Iterator[tuple[Span | None, str]]:
    if starts and len(starts) != len(answers):
        if answers:
            yield None, "there are not as many starts as answers"
        return
    for position, answer in enumerate(answers):
        piece = plain(answer)
        if piece is None:
            yield None, "the answer is neither text nor a list of texts"
        elif piece.strip():
            yield _span(text, piece, starts[position] if starts else None)


def _span(text: str, piece: str, start: object) -> tuple[Span | None, str]:
    """Return the span of an answer, or None and the mistake."""
    number = (plain(start) or "").strip()
    if not number:
        return find_span(text, piece), "the answer is not in the text"
    if not is_whole(number):
        return None, "the answer's start is not a whole number"
    first = int(float(number))
    if first < 0 or first + len(piece) > len(text):
        return None, "the answer's span is outside the text"
    if text[first : first + len(piece)] != piece:
        return None, "the text at the answer's start is not the answer"
    return (first, first + len(piece)), ""


def is_whole(number: str) -> bool:
    """Return True for a whole number, also as 321.0: pandas writes it so in columns with gaps."""
    return re.fullmatch(r"[+-]?\d{1,15}(\.0*)?", number) is not None


def _as_list(value: object) -> list[object]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list) else [value]
