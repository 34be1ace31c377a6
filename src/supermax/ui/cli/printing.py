"""Terminal output of commands: literal text, without Rich markup or terminal escapes."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from supermax._util.text import printable


class _Console(Console):
    def print(self, *objects: object, **options: Any) -> None:
        super().print(*(literal(o) if isinstance(o, str) else o for o in objects), **options)


def console() -> Console:
    """Return a console on standard output that prints strings literally."""
    return _Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def literal(text: str, style: str = "") -> Text:
    """Return the text with control characters removed and markup left as it is."""
    return Text(printable(text), style=style)


def file_stem(name: str) -> str:
    """Return a study's name in characters that are safe in a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "study"


def front_text(size: int | None) -> str:
    """Return the size of a Pareto front, shown where a single objective has its best value."""
    return f"front of {size:,}" if size else "–"
