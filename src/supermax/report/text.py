"""Values as people read them, and texts made harmless for where they are shown."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from supermax.words import masked, one_line, printable, size_text


def shown(value: Any, most: int = 60) -> str:
    """A value of a parameter or an objective, short."""
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
    """A metric in a column of metrics: always four decimals."""
    return "–" if value is None else f"{value:.4f}"


def rate(value: float | None) -> str:
    """Format a number of things per time: 3,190, 41.2, 0.35."""
    if value is None:
        return "–"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def clipped(text: str, most: int) -> str:
    """Masked before it is cut: half a password is one too."""
    return one_line(clean(text), most)


def clean(text: str) -> str:
    """Without colours of a terminal, control characters and passwords."""
    return masked(printable(text))


def plot_text(text: str, most: int = 48) -> str:
    """For labels in a plot, in which Plotly reads a few HTML tags and entities: all literal."""
    text = clipped(text, most)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def real(value: Any) -> float | None:
    """A finite number, whatever else an attribute may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def size(value: Any) -> str:
    count = real(value)
    return "–" if count is None else size_text(count)


def moment(at: float | None) -> str:
    """In UTC, so that the same study reads the same everywhere."""
    if at is None:
        return "–"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
