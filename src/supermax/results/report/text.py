"""Values formatted for display, and texts cleaned for the page and for plots."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from supermax._util.text import masked, one_line, printable, size_text


def shown(value: object, most: int = 60) -> str:
    """Return a value of a parameter or an objective in short form."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number(value)
    return clipped(str(value), most)


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and abs(value) < 1_000_000:
        return str(value)
    return f"{value:.{digits}g}"


def fixed(value: float | None) -> str:
    """Return a metric with four decimals, so that a column of them is aligned."""
    return "–" if value is None else f"{value:.4f}"


def rate(value: float | None) -> str:
    """Format a number of things per time: 3,190, 41.2, 0.35."""
    if value is None:
        return "–"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def clipped(text: str, most: int) -> str:
    """Return one line of at most `most` characters. Passwords are masked before it is cut off,
    because a part of one would no longer be recognised."""
    return one_line(clean_text(text), most)


def clean_text(text: str) -> str:
    """Return the text without terminal colours, control characters and passwords."""
    return masked(printable(text))


def plot_text(text: str, most: int = 48) -> str:
    """Return a plot label, escaped because Plotly interprets some HTML tags and entities."""
    text = clipped(text, most)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def real(value: object) -> float | None:
    """Return the value if it is a finite number, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def size_cell(value: object) -> str:
    count = real(value)
    return "–" if count is None else size_text(count)


def moment(at: float | None) -> str:
    """Return a Unix time in UTC, so that a report is the same in every time zone."""
    if at is None:
        return "–"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
