"""Rules for which values of the data may be shown in messages: names, never texts."""

from __future__ import annotations

from collections.abc import Iterable

from supermax._util import text

_LONGEST_NAME = 40
_MOST_WORDS = 4


def nearest_column(word: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest known name, or "".

    Only names are offered: the first row of a file without a header may be a text.
    """
    return text.nearest(word, [name for name in known if is_name(name)])


def is_name(value: str) -> bool:
    """Return True if a value can only be a name, which may be shown, and not a text."""
    return 0 < len(value) <= _LONGEST_NAME and not any(c.isspace() for c in value)


def is_class_name(value: str) -> bool:
    """Return True if the name of a class is too short to be a text."""
    few = len(value.split()) <= _MOST_WORDS and value.isprintable()
    return 0 < len(value) <= _LONGEST_NAME and few
