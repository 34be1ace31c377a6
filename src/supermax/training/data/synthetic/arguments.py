"""Check of the arguments that all generators share."""

from __future__ import annotations

from supermax.errors import UserError


def check_arguments(posts: int, difficulty: float, max_words: int | None) -> None:
    """Raise UserError for arguments with which no data can be generated."""
    wrong = []
    if posts < 1:
        wrong.append("posts must be at least 1")
    if not 0 <= difficulty <= 1:
        wrong.append("difficulty must be between 0 and 1")
    if max_words is not None and max_words < 1:
        wrong.append("max_words must be at least 1")
    if wrong:
        raise UserError("\n  - ".join(["Synthetic data cannot be generated like this:", *wrong]))
