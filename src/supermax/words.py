"""Words for people: lists, and the nearest valid name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any


def listed(head: str, items: Iterable[str]) -> str:
    """A head and its points; a point of several lines is set in."""
    inner = [item.replace("\n", "\n    ") for item in items]
    return "\n".join([head, *(f"  - {item}" for item in inner)])


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


def in_short(error: object, most: int = 200) -> str:
    """What an error of somebody else's says, on one line and not for ever."""
    return " ".join(str(error).split())[:most].rstrip(".")


def printable(text: str) -> str:
    """Without what could move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def finite(data: Any) -> Any:
    """As JSON can have it, which knows no infinity: such values become text."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def counted(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def size_text(n: float) -> str:
    """Bytes, in a unit that people read."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if n >= 100 or unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def mistakes(count: int) -> str:
    return "a mistake" if count == 1 else f"{count} mistakes"


def ended(text: str) -> str:
    """With a full stop, unless a question mark ends it already."""
    return text if text.endswith("?") else f"{text}."


def edits(one: str, other: str) -> int:
    """How many characters must be put in, taken out or replaced to make one the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
