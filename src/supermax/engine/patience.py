"""Patience with what passes: a storage that does not answer, a run folder that is full.

operation fails ──▶ Wait.pause(why) ──▶ again ─ ─ ─▶ EnvironmentFault, after ten minutes
                        └──▶ a notice, after five seconds
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from supermax.errors import EnvironmentFault

_QUIET = 5.0  # seconds of waiting before a notice
_STOPPING = 5.0  # seconds to wait once a signal has asked the run to stop
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Subject:
    """Thing that is waited for, and the words of the messages about it."""

    name: str
    """In a notice: "Waiting for …"."""
    failure: str
    """Start of the sentence that ends the run; how long and why are added to it."""
    advice: str


class Patience:
    """Limit on every wait of one run, in seconds, and the receiver of notices."""

    default = 600.0

    def __init__(self, say: Callable[[str], None]) -> None:
        self.limit = self.default
        self.say = say
        self._stop_asked: float | None = None

    def stop_soon(self) -> None:
        """Cut waits short, because a signal asked the run to stop. Safe in a signal handler."""
        if self._stop_asked is None:
            self._stop_asked = time.monotonic()

    def wait_for(self, subject: Subject) -> Wait:
        return Wait(self, subject)

    def deadline(self, started: float) -> float:
        """Moment at which a wait that began at `started` has lasted too long."""
        if self._stop_asked is None:
            return started + self.limit
        return min(started + self.limit, max(started, self._stop_asked) + _STOPPING)


class Wait:
    """Wait for one operation to succeed, over all its attempts."""

    def __init__(self, patience: Patience, subject: Subject) -> None:
        self._patience = patience
        self._subject = subject
        self._started = time.monotonic()
        self._pause = _FIRST_PAUSE
        self._told = False

    def check(self, why: str) -> None:
        """Say that the run waits, once; raise when it has waited too long."""
        now = time.monotonic()
        if now > self._patience.deadline(self._started):
            self._give_up(why)
        if now - self._started > _QUIET and not self._told:
            self._told = True
            self._patience.say(f"Waiting for {self._subject.name}: {why}.")

    def _give_up(self, why: str) -> NoReturn:
        waited, subject = time.monotonic() - self._started, self._subject
        raise EnvironmentFault(
            f"{subject.failure} for {waited:.0f} s ({why}). {subject.advice} and call again: the "
            f"run goes on."
        ) from TimeoutError(why)

    def pause(self, why: str) -> None:
        """Check, then sleep before the next attempt, longer each time."""
        self.check(why)
        time.sleep(self._pause)  # there is nothing to wait on but the next attempt
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
