"""Retries with a deadline: a storage that does not respond, a run folder on a full disk.

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
_FIRST_PAUSE = 0.01  # seconds; doubles with each retry
_LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Subject:
    """Resource that is waited for, as messages name it."""

    name: str
    """End of the notice "Waiting for …"."""
    failure: str
    """Start of the error message; the duration and the reason follow it."""
    advice: str
    """Start of the advice; "and call again" follows it."""
    fault: type[EnvironmentFault] = EnvironmentFault
    """Error that is raised at the deadline."""


class Patience:
    """Limit on every wait of a run, in seconds. `notify` receives notices."""

    default = 600.0

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.limit = self.default
        self.notify = notify
        self.check_need: Callable[[], None] = lambda: None
        """Called again and again during a wait for the run folder; raises if nothing needs it."""
        self._stop_asked: float | None = None

    def stop_soon(self) -> None:
        """Shorten waits because a signal asked the run to stop. Safe in a signal handler."""
        if self._stop_asked is None:
            self._stop_asked = time.monotonic()

    def wait_for(self, subject: Subject) -> Wait:
        return Wait(self, subject)

    def deadline(self, started: float) -> float:
        """Return the moment at which a wait that began at `started` times out."""
        if self._stop_asked is None:
            return started + self.limit
        return min(started + self.limit, max(started, self._stop_asked) + _STOPPING)


class Wait:
    """Wait for one operation to succeed, across its retries."""

    def __init__(self, patience: Patience, subject: Subject) -> None:
        self._patience = patience
        self._subject = subject
        self._started = time.monotonic()
        self._pause = _FIRST_PAUSE
        self._notified = False

    def check(self, why: str) -> None:
        """Emit one notice after a while; raise EnvironmentFault at the deadline."""
        now = time.monotonic()
        if now > self._patience.deadline(self._started):
            self._time_out(why)
        if now - self._started > _QUIET and not self._notified:
            self._notified = True
            self._patience.notify(f"Waiting for {self._subject.name}: {why}.")

    def _time_out(self, why: str) -> NoReturn:
        waited, subject = time.monotonic() - self._started, self._subject
        raise subject.fault(
            f"{subject.failure} for {waited:.0f} s ({why}). {subject.advice} and call again: the "
            f"run resumes."
        ) from TimeoutError(why)

    def pause(self, why: str) -> None:
        """Check the deadline, then sleep before the next retry, twice as long each time."""
        self.check(why)
        time.sleep(self._pause)  # no event announces that the resource is back
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
