"""Throughput and progress of training, reported about once a second.

Samples are counted when their step is enqueued, with the CPU's clock, so nothing waits for the
device. The CPU is at most a few updates ahead, so over a second or more the rate is that of the
device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

EVERY = 1.0  # seconds
_MIN_SECONDS = 0.2  # a rate over less is too noisy


class ThroughputCallback(Protocol):
    """Receives the epochs done, as a fraction, and the rate; None: not measured yet."""

    def __call__(self, *, epoch: float, samples_per_second: float | None) -> None: ...


class Throughput:
    """Measures samples per second of training alone: time between epochs does not count."""

    def __init__(
        self, report: ThroughputCallback, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report = report
        self._clock = clock
        self._last_report = self._since = clock()
        self._samples = 0
        self._seconds = 0.0
        self._rate: float | None = None
        self._all, self._all_seconds = 0, 0.0

    def begin(self) -> None:
        """Start the clock of an epoch, or of the rest of one."""
        self._since = self._clock()

    def step(self, samples: int, epoch: float) -> None:
        """Count samples; `epoch`: epochs done, including the fraction of the current one."""
        self._samples += samples
        self._all += samples
        now = self._clock()
        if now - self._last_report >= EVERY:
            self._measure(now, epoch)

    def end(self, epoch: float) -> None:
        """Stop the clock of an epoch and report."""
        self._measure(self._clock(), epoch)

    def overall(self, without: float = 0.0) -> float | None:
        """Return the samples per second of the whole training, not counting `without` seconds;
        None where the rest is too short to measure."""
        seconds = self._all_seconds - without
        return self._all / seconds if seconds >= _MIN_SECONDS else None

    def _measure(self, now: float, epoch: float) -> None:
        self._seconds += now - self._since
        self._all_seconds += now - self._since
        self._since = self._last_report = now
        if self._seconds >= (_MIN_SECONDS if self._rate is None else EVERY):
            self._rate = self._samples / self._seconds
            self._samples, self._seconds = 0, 0.0
        self._report(epoch=epoch, samples_per_second=self._rate)
