"""The evidence of a row: pieces of its text, with or without where they begin."""

from __future__ import annotations

import re
from collections.abc import Iterator

from supermax.training.data.rows import plain
from supermax.training.data.spans import Span, locate


def evidence(text: str, answers: object, starts: object) -> tuple[tuple[Span, ...], list[str]]:
    """Where the answers stand in the text, and what is wrong with them.

    One answer or a list, with as many starts or none; an empty answer is no evidence. Each answer
    of a list is a right one by itself, as in SQuAD: those that overlap stay apart.
    """
    found, mistakes = [], []
    for span, what in _places(text, _listed(answers), _listed(starts)):
        if span is not None:
            found.append(span)
        elif what not in mistakes:
            mistakes.append(what)
    return tuple(sorted(set(found))), mistakes


def _places(
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
            yield _place(text, piece, starts[position] if starts else None)


def _place(text: str, piece: str, start: object) -> tuple[Span | None, str]:
    written = (plain(start) or "").strip()
    if not written:
        return locate(text, piece), "the answer is not in the text"
    if not is_whole(written):
        return None, "the answer's start is not a whole number"
    first = int(float(written))
    if first < 0 or first + len(piece) > len(text):
        return None, "the answer's span is outside the text"
    if text[first : first + len(piece)] != piece:
        return None, "the answer does not stand at its start in the text"
    return (first, first + len(piece)), ""


def is_whole(written: str) -> bool:
    """Return whether this is a whole number. pandas writes 321.0 where cells of its column are
    empty."""
    return re.fullmatch(r"[+-]?\d{1,15}(\.0*)?", written) is not None


def _listed(value: object) -> list[object]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list) else [value]
