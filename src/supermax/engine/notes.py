"""What a trial says about how it is doing: shown while it runs, and not stored.

    trial.note(...) ──▶ readable() ──▶ Notes ──a few times a second──▶ Note ──▶ TrialNoted

A note is worth less than anything else a trial does. So it waits for nothing: what comes too soon,
or while the coordinator is busy, is kept and goes along with the next one or the next report.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Integral, Real

Fact = float | int | str | None
"""None: there is no such fact any more."""

INTERVAL = 0.25  # seconds between two notes of a trial
MOST_FACTS = 16
LONGEST_NAME = 40
LONGEST_TEXT = 100
_LARGEST = 2**53  # what every reader of JSON takes for the same number


def readable(facts: object) -> dict[str, Fact]:
    """The facts that can be shown, whatever was given; one that cannot be is taken away."""
    if not isinstance(facts, Mapping):
        return {}
    found: dict[str, Fact] = {}
    for name, value in facts.items():
        if isinstance(name, str) and len(found) < MOST_FACTS:
            found[name[:LONGEST_NAME]] = _fact(value)
    return found


def _fact(value: object) -> Fact:
    """A finite number or a short text. A tensor is neither: reading it may wait for a device."""
    try:
        if isinstance(value, str):
            return str(value)[:LONGEST_TEXT]
        if isinstance(value, Integral):
            return int(value) if abs(int(value)) <= _LARGEST else None
        if isinstance(value, Real):
            return float(value) if math.isfinite(float(value)) else None
    except Exception:  # a class of somebody's own that only looks like a number
        pass
    return None


class Notes:
    """The facts that wait to be sent, and when the last ones were. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, Fact] = {}
        self._sent = -math.inf
        self._lock = threading.Lock()

    def add(self, facts: Mapping[str, object]) -> bool:
        """Take the facts in; True when it is time to send what has gathered."""
        with self._lock:
            self._waiting.update(readable(facts))
            while len(self._waiting) > MOST_FACTS:  # names that change all the time
                del self._waiting[next(iter(self._waiting))]
            return self._clock() - self._sent >= INTERVAL

    def take(self) -> dict[str, Fact]:
        with self._lock:
            facts, self._waiting = self._waiting, {}
            if facts:
                self._sent = self._clock()
            return facts
