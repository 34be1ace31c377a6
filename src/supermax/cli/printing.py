"""What commands print: as it stands, never as markup, and nothing that moves the cursor."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from supermax.words import printable


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(literal(o) if isinstance(o, str) else o for o in objects), **options)


def console() -> Console:
    return _Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def literal(said: str, style: str = "") -> Text:
    return Text(printable(said), style=style)


def file_stem(name: str) -> str:
    """A study's name as the beginning of a file's."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "study"


def front_text(size: int | None) -> str:
    """In the place of a best value, where there are several objectives."""
    return f"front of {size:,}" if size else "–"
