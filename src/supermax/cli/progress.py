"""Progress of a command that takes a while, on standard error with the elapsed time."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Self

from supermax.words import clock as as_clock
from supermax.words import printable

EVERY, EVERY_IN_PLACE = 10.0, 1.0
"""Least seconds between two counts of the same step: as lines, and on one line of a terminal."""


class Progress:
    """Prints steps at once and counts now and then; nothing where it is not `shown`. In a terminal
    a count is written over the one before."""

    def __init__(self, *, shown: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._clock = shown, clock
        self._began = self._last = clock()
        self._in_place = shown and sys.stderr.isatty()
        self._open = False  # a count that the next line must not be written behind

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    def step(self, text: str) -> None:
        self._print(text, in_place=False)

    def count(self, text: str) -> None:
        if self._clock() - self._last >= (EVERY_IN_PLACE if self._in_place else EVERY):
            self._print(text, in_place=self._in_place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the line of a count, before something else is printed."""
        if self._open:
            self._open = False
            self._write("\n")

    def _print(self, text: str, in_place: bool) -> None:
        self._last = self._clock()
        if not self._shown:
            return
        line = f"[supermax {as_clock(self.elapsed)}] {printable(text)}"
        if in_place:
            line = line[: shutil.get_terminal_size().columns - 1]  # a longer one would wrap
        over = "\r\x1b[K" if self._open and in_place else "\n" if self._open else ""
        self._open = in_place
        self._write(over + line + ("" if in_place else "\n"))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone, which is no reason to end
            sys.stderr.write(text)
            sys.stderr.flush()
