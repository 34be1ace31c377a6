"""How fast training goes and how far it is, told about once a second.

Samples are counted where they are handed out and times are the host's, so nobody waits for a
device: over a second or more the two keep in step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

EVERY = 1.0  # seconds
_LITTLE = 0.2  # seconds; a rate taken over less says nothing


class Told(Protocol):
    def __call__(self, *, epoch: float, samples_per_second: float | None) -> None: ...


class Pace:
    """Counts only while an epoch is trained: what comes between two does not slow the rate."""

    def __init__(self, told: Told, clock: Callable[[], float] = time.monotonic) -> None:
        self._told = told
        self._clock = clock
        self._last_told = self._since = clock()
        self._samples = 0
        self._seconds = 0.0
        self._rate: float | None = None
        self._all, self._all_seconds = 0, 0.0

    def begin(self) -> None:
        """An epoch, or the rest of one, begins."""
        self._since = self._clock()

    def step(self, samples: int, epoch: float) -> None:
        """So many samples more; `epoch` is how many are done, with the share of this one."""
        self._samples += samples
        self._all += samples
        now = self._clock()
        if now - self._last_told >= EVERY:
            self._tell(now, epoch)

    def end(self, epoch: float) -> None:
        """The epoch is trained."""
        self._tell(self._clock(), epoch)

    def overall(self, without: float = 0.0) -> float | None:
        """Samples a second since it was made, `without` so many seconds; None where that was too
        short to tell."""
        seconds = self._all_seconds - without
        return self._all / seconds if seconds >= _LITTLE else None

    def _tell(self, now: float, epoch: float) -> None:
        self._seconds += now - self._since
        self._all_seconds += now - self._since
        self._since = self._last_told = now
        if self._seconds >= (_LITTLE if self._rate is None else EVERY):
            self._rate = self._samples / self._seconds
            self._samples, self._seconds = 0, 0.0
        self._told(epoch=epoch, samples_per_second=self._rate)
