"""Parsers of durations, sizes and numbers of workers: 8h, 90m, 24GiB, auto."""

from __future__ import annotations

import re
from typing import Literal

_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1} | {
    f"{letter}{i}B": (1024 if i else 1000) ** power
    for power, letter in enumerate("KMGT", 1)
    for i in ("i", "")
}
_MIN_BYTES = 1 << 20  # a smaller size lacks its unit
_NUMBER = r"(\d+(?:\.\d+)?)"


def seconds(text: str | float) -> float:
    """Parse 8h, 90m, 1h30m, 2d, or a number of seconds. Raises ValueError."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _positive(float(text), text)
    bare = str(text).replace(" ", "").lower()
    if re.fullmatch(_NUMBER, bare):
        return _positive(float(bare), text)
    if not re.fullmatch(rf"({_NUMBER}(min|s|m|h|d))+", bare):
        raise ValueError(f"{text!r:.40} is no duration; write 90m, 8h, 1h30m or 2d")
    parts = re.findall(rf"{_NUMBER}(min|s|m|h|d)", bare)
    return _positive(sum(float(number) * _SECONDS[unit] for number, unit in parts), text)


def size(text: str | int) -> int:
    """Parse 24GiB, 500MB, or a number of bytes from 1 MiB on. Raises ValueError."""
    match = re.fullmatch(rf"(-?){_NUMBER}([A-Za-z]*)", str(text).replace(" ", ""))
    units = {name.lower(): factor for name, factor in _BYTES.items()}
    units |= {letter: 1024**power for power, letter in enumerate("kmgt", 1)}
    if match is None or match[3].lower() not in units:
        raise ValueError(f"{text!r:.40} is no size; write 24GiB or 500MB")
    sign, number, unit = match.groups()
    value = _positive(float(sign + number) * units[unit.lower()], text)
    if value < _MIN_BYTES:
        what = f"{number:.40} what? Write" if not unit else f"{text!r:.40} is too little; write"
        example = f"{number}GiB" if not unit and float(number) >= 1 else "24GiB"
        raise ValueError(f"{what} {example[:40]} or 500MB")
    return int(value)


def workers(text: str | int) -> int | Literal["auto"]:
    """Parse a number of parallel trials from 1 to 512, or auto. Raises ValueError."""
    if str(text).strip().lower() == "auto":
        return "auto"
    bare = str(text).strip()
    if isinstance(text, bool) or not re.fullmatch(r"\d{1,4}", bare) or not 1 <= int(bare) <= 512:
        raise ValueError(f"{text!r:.40} is no number of workers; write 1 to 512, or auto")
    return int(bare)


def _positive(value: float, text: object) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r:.40} must be more than 0")
    return value
