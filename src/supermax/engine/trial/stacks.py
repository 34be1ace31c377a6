"""Frames of a traceback, or of a stack written by faulthandler, and the user's among them.

A frame is the user's if its file is neither of this package nor of Python nor installed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARY = re.compile(r"[/\\](?:lib(?:64)?[/\\]python\d[^/\\]*|site-packages|dist-packages)[/\\]")
_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:,)? in (?P<function>[^\n]+)\n?'
    r"(?: {4,}(?!File )(?P<code>[^\n]+))?",
    re.MULTILINE,
)
_NEWEST_FIRST = "(most recent call first):"  # as faulthandler writes it
_CURRENT = "Current thread"


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str
    code: str = ""
    """Source of the line; "": the text does not have it."""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, in {self.function}"


def own_frame(text: str) -> Frame | None:
    """Return the innermost frame of the user's code in a traceback, or in the last stack of
    faulthandler; None: there is none."""
    newest_first = _NEWEST_FIRST in text
    if newest_first:
        start = text.rfind(_CURRENT)
        text = text[start if start >= 0 else text.rfind(_NEWEST_FIRST) :]
        text = text.partition("\n\n")[0]
    found = [
        Frame(match["file"], int(match["line"]), match["function"].strip(), match["code"] or "")
        for match in _FRAME.finditer(text)
        if is_users(match["file"])
    ]
    if not found:
        return None
    return found[0] if newest_first else found[-1]


def is_users(filename: str) -> bool:
    """Return whether a file is the user's: not installed, and not part of this package."""
    library = filename.startswith("<frozen") or _LIBRARY.search(filename) is not None
    return not library and not is_ours(filename)


def is_ours(filename: str) -> bool:
    """Return whether a file is part of this package."""
    return filename.startswith(_PACKAGE + os.sep)
