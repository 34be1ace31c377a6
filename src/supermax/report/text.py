"""Values as people read them, and texts made harmless for where they are shown."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from supermax.words import size_text

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029\ud800-\udfff]")
_CREDENTIALS = re.compile(r"(?<=://)([^\s/:@\'\"]*):[^\s\'\"]*@")
_SECRET = re.compile(r"(?i)\b((?:password|passwd|pwd)=)[^\s&;,\'\"]+")


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


def clipped(text: str, most: int) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clean(text: str) -> str:
    """Without colours of a terminal, control characters and passwords in URLs."""
    text = _CONTROL.sub("\ufffd", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    return _SECRET.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", text))


def plot_text(text: str, most: int = 48) -> str:
    """For labels in a plot, in which Plotly reads a few HTML tags and entities: all literal."""
    text = clipped(text, most)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def real(value: Any) -> float | None:
    """A finite number, whatever else an attribute may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def duration(value: Any) -> str:
    seconds = real(value)
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 60:
        return f"{minutes:.3g} min"
    return f"{hours:.3g} h" if hours < 48 else f"{hours / 24:.3g} days"


def size(value: Any) -> str:
    count = real(value)
    return "–" if count is None else size_text(count)


def moment(at: float | None) -> str:
    """In UTC, so that the same study reads the same everywhere."""
    if at is None:
        return "–"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
