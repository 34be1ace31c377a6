"""Progress of a command that takes a while, on standard error with the elapsed time."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Self

from supermax._util.text import clock as as_clock
from supermax._util.text import printable

EVERY, EVERY_IN_PLACE = 10.0, 1.0
"""Seconds between two counts of the same step, at least: as separate lines, and as one line of a
terminal that is overwritten."""


class Progress:
    """Printer of a command's progress on standard error: every step, and counts at intervals.

    In a terminal a count overwrites the previous one. Nothing is printed unless `shown`.
    """

    def __init__(self, *, shown: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._clock = shown, clock
        self._started = self._printed = clock()
        self._in_place = shown and sys.stderr.isatty()
        self._line_open = False  # the cursor is at the end of a count

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def step(self, text: str) -> None:
        """Print a line."""
        self._print(text, in_place=False)

    def count(self, text: str) -> None:
        """Print a count, unless the last line is too recent."""
        if self._clock() - self._printed >= (EVERY_IN_PLACE if self._in_place else EVERY):
            self._print(text, in_place=self._in_place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the line of a count, before something else is printed."""
        if self._line_open:
            self._line_open = False
            self._write("\n")

    def _print(self, text: str, in_place: bool) -> None:
        self._printed = self._clock()
        if not self._shown:
            return
        line = f"[supermax {as_clock(self.elapsed)}] {printable(text)}"
        if in_place:
            line = line[: shutil.get_terminal_size().columns - 1]  # a longer one would wrap
        start = ("\r\x1b[K" if in_place else "\n") if self._line_open else ""
        self._line_open = in_place
        self._write(start + line + ("" if in_place else "\n"))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not end the command
            sys.stderr.write(text)
            sys.stderr.flush()
