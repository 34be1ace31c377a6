"""Progress of a command that takes a while, as lines on standard error with the elapsed time."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

from supermax.words import clock as as_clock
from supermax.words import printable

EVERY = 2.0
"""Least seconds between two counts of the same step."""


class Progress:
    """Prints steps at once and counts now and then; nothing where it is not `shown`."""

    def __init__(self, *, shown: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._clock = shown, clock
        self._began = self._last = clock()

    def step(self, text: str) -> None:
        self._last = self._clock()
        if self._shown:
            with contextlib.suppress(OSError):  # the terminal is gone, which is no reason to end
                elapsed = as_clock(self._last - self._began)
                print(f"[supermax {elapsed}] {printable(text)}", file=sys.stderr, flush=True)

    def count(self, text: str) -> None:
        if self._clock() - self._last >= EVERY:
            self.step(text)
