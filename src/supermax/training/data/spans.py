"""Spans: character ranges [start, end) of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable

Span = tuple[int, int]


def find_span(text: str, piece: str) -> Span | None:
    """Return the first span of a piece in a text, with any white space equal; None: not found."""
    if (start := text.find(piece)) >= 0 and piece.strip():
        return start, start + len(piece)
    words = piece.split()
    if not words:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return found.span() if found else None


def merged(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    """Return the spans in order, merged if they overlap or only white space separates them."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and not text[result[-1][1] : start].strip():
            start, last = result.pop()
            end = max(last, end)
        result.append((start, end))
    return tuple(result)
