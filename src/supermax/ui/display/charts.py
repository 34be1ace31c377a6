"""Sparklines, bars and text fitted to a width in terminal cells. All functions are pure.

`ascii` is for terminals whose encoding has no block characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-:=+*#"


def spark(values: Sequence[float], width: int, ascii: bool = False) -> str:
    """Return a curve as one line, the newest value last; a value that is not finite is a gap."""
    blocks = _ASCII_BLOCKS if ascii else _BLOCKS
    shown = _resampled(values, width)
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return " " * len(shown)
    low, high = min(finite), max(finite)
    steps = len(blocks) - 1

    def block(value: float) -> str:
        if not math.isfinite(value):
            return " "
        # Halved first, because the difference of two large numbers may overflow to infinity.
        height = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return blocks[round(height * steps)] if math.isfinite(height) else blocks[0]

    return "".join(map(block, shown))


def _resampled(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` values: the last one of each of so many equal parts."""
    count = len(values)
    if count <= width:
        return list(values)
    return [values[(i + 1) * count // width - 1] for i in range(max(0, width))]


def bar(share: float, width: int, ascii: bool = False) -> str:
    """Return a progress bar, filled to `share`, which is clipped to 0 and 1."""
    full, empty = ("#", ".") if ascii else ("█", "░")
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    filled = round(share * width)
    return full * filled + empty * (width - filled)


def cut(text: str, width: int, ascii: bool = False) -> str:
    """Return the text in at most `width` cells; a truncated one ends in an ellipsis."""
    if ascii:
        text = text.encode("ascii", "replace").decode()
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    return set_cell_size(text, width - 1).rstrip() + ("~" if ascii else "…")


def fold(text: str, width: int, most: int) -> list[str]:
    """Return the text as at most `most` lines, broken between words where possible.

    The last line may be too long, for the caller to truncate.
    """
    width = max(1, width)
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while cell_len(line) > width and len(line) > 1:
            head = set_cell_size(line, width).rstrip() or line[0]
            lines.append(head)
            line = line[len(head) :].lstrip()
    lines.append(line)
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return lines
