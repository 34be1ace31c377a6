"""Words for people, and what of a person's data may be among them at all."""

from __future__ import annotations

from collections.abc import Iterable

from supermax import words

_LONGEST_NAME = 40
_MOST_WORDS = 4


def nearest(word: str, known: Iterable[str]) -> str:
    """The nearest valid name. Only names are offered: the first row of a file without a header
    is somebody's text."""
    return words.nearest(word, [name for name in known if is_name(name)])


def is_name(value: str) -> bool:
    """Whether a value is a name, which may be shown, and not possibly a person's text."""
    return 0 < len(value) <= _LONGEST_NAME and not any(c.isspace() for c in value)


def is_class_name(value: str) -> bool:
    """Return whether the name of a class is too short to be a person's text."""
    few = len(value.split()) <= _MOST_WORDS and value.isprintable()
    return 0 < len(value) <= _LONGEST_NAME and few
