"""Where a piece of a text stands in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

Span = tuple[int, int]


def locate(text: str, piece: str) -> Span | None:
    """The first place of a piece in a text, white space taken as alike; None: it is not there."""
    if (start := text.find(piece)) >= 0 and piece.strip():
        return start, start + len(piece)
    words = piece.split()
    if not words:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return found.span() if found else None


def merged(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    """In order; those that overlap, or have only white space between them, become one."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and not text[result[-1][1] : start].strip():
            start, last = result.pop()
            end = max(last, end)
        result.append((start, end))
    return tuple(result)
