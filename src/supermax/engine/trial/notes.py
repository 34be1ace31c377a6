"""Progress notes of a trial: shown while it runs, never stored.

    trial.note(...) ──▶ readable() ──▶ Notes ──a few times a second──▶ Note ──▶ TrialNoted

A note never blocks a trial: one that comes too soon, or while the coordinator is busy, is sent
with the next note or report.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Integral, Real

Fact = float | int | str | None
"""Value of a note; None removes the name."""

INTERVAL = 0.25
"""Seconds between two messages with notes of a trial."""
MOST_FACTS = 16
LONGEST_NAME = 40
LONGEST_TEXT = 100
_LARGEST = 2**53  # integers up to here are exact in every JSON reader


def readable(facts: object) -> dict[str, Fact]:
    """Return the facts with shortened names and texts; None for a value that cannot be shown."""
    if not isinstance(facts, Mapping):
        return {}
    found: dict[str, Fact] = {}
    for name, value in facts.items():
        if isinstance(name, str) and len(found) < MOST_FACTS:
            found[name[:LONGEST_NAME]] = _fact(value)
    return found


def _fact(value: object) -> Fact:
    """Return a finite number or a short text, otherwise None. Tensors give None: reading one would
    synchronise with the GPU."""
    try:
        if isinstance(value, str):
            return str(value)[:LONGEST_TEXT]
        if isinstance(value, Integral):
            return int(value) if abs(int(value)) <= _LARGEST else None
        if isinstance(value, Real):
            return float(value) if math.isfinite(float(value)) else None
    except Exception:  # a user-defined class that registers as a number but cannot be converted
        pass
    return None


class Notes:
    """Facts that wait to be sent, limited in rate. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, Fact] = {}
        self._sent = -math.inf
        self._lock = threading.Lock()

    def add(self, facts: Mapping[str, object]) -> bool:
        """Add facts; return whether it is time to send those that wait."""
        with self._lock:
            self._waiting.update(readable(facts))
            while len(self._waiting) > MOST_FACTS:  # the oldest names, if they keep changing
                del self._waiting[next(iter(self._waiting))]
            return self._clock() - self._sent >= INTERVAL

    def take(self) -> dict[str, Fact]:
        """Return the facts that wait, and clear them."""
        with self._lock:
            facts, self._waiting = self._waiting, {}
            if facts:
                self._sent = self._clock()
            return facts
