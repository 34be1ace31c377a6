"""Words for people: lists, and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def listed(head: str, items: Iterable[str]) -> str:
    return "\n".join([head, *(f"  - {item}" for item in items)])


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' for a word that is close to a known one, otherwise what there is."""
    known = list(dict.fromkeys(known))
    lowered = {name.lower(): name for name in known}
    if match := difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5):
        return f"; did you mean {lowered[match[0]]!r}?"
    tails = [name for name in known if name.split(".")[-1] == word.split(".")[-1]]
    if tails:
        return f"; did you mean {tails[0]!r}?"
    if known and len(known) <= 12:
        return f"; there are {', '.join(known)}"
    return ""
