"""Attempts that take too long, fall silent or do not stop: found in time, and ended by steps.

limit passed ──▶ ask for the stack ──▶ TERM ──▶ grace ──▶ KILL the group
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from supermax.engine.faults import KilledFor
from supermax.engine.fleet import KILL, SHOW_STACK, TERM, Fleet
from supermax.engine.job import Attempt

_STACK_PAUSE = 0.3  # for a hung cell to write its stack into its log
_TERM_GRACE = 5.0
_STOP_GRACE = 30.0  # for a trial that never reports
_AGAIN = 1.0


class Watch:
    def __init__(
        self, fleet: Fleet, trial_timeout: float | None, stall_timeout: float | None
    ) -> None:
        self._fleet = fleet
        self._trial_timeout = trial_timeout
        self._stall_timeout = stall_timeout

    def due(self, attempts: Iterable[Attempt]) -> list[float]:
        """When something will have to be done about one of them."""
        due = []
        for attempt in attempts:
            due += [when for when, _ in attempt.ladder[:1]]
            if attempt.killed_for is None:
                due += [when for when, _, _ in self._limits(attempt)]
        return due

    def enforce(self, attempts: Iterable[Attempt]) -> None:
        now = time.monotonic()
        for attempt in attempts:
            passed = [limit for limit in self._limits(attempt) if limit[0] <= now]
            if attempt.killed_for is None and passed:
                self._begin(attempt, *passed[0][1:])
            elif attempt.ladder and attempt.ladder[0][0] <= now:
                self._climb(attempt, now)

    def wind_down(self, attempt: Attempt) -> None:
        """The run is stopping: the attempt has until its next report, and not for ever."""
        attempt.ladder = attempt.ladder or _ladder(time.monotonic() + _STOP_GRACE)

    def mute(self, attempt: Attempt) -> None:
        """Its connection is cut. Mostly it is just ending; if not, it is ended."""
        if not attempt.ladder:
            attempt.doom = KilledFor.MUTE
            attempt.ladder = [(time.monotonic() + _TERM_GRACE, int(KILL))]

    def _limits(self, attempt: Attempt) -> list[tuple[float, KilledFor, float]]:
        """When it is too slow, and when it is too silent."""
        limits = []
        if (seconds := self._trial_timeout) is not None:
            limits.append((attempt.started + seconds, KilledFor.TIMEOUT, seconds))
        if (seconds := self._stall_timeout) is not None and attempt.last_step is not None:
            limits.append((attempt.last_heard + seconds, KilledFor.STALL, seconds))
        return limits

    def _begin(self, attempt: Attempt, why: KilledFor, limit: float) -> None:
        if why is KilledFor.STALL and attempt.cell.channel.has_waiting():
            attempt.last_heard = time.monotonic()  # it has spoken; nobody had time to listen
            return
        attempt.killed_for = why
        attempt.limit = limit
        self._fleet.signal(attempt.cell, SHOW_STACK, group=False)
        attempt.ladder = _ladder(time.monotonic() + _STACK_PAUSE)

    def _climb(self, attempt: Attempt, now: float) -> None:
        _, signum = attempt.ladder[0]
        attempt.killed_for = attempt.killed_for or attempt.doom
        self._fleet.signal(attempt.cell, signum)
        attempt.ladder = attempt.ladder[1:] or [(now + _AGAIN, int(KILL))]


def _ladder(first: float) -> list[tuple[float, int]]:
    return [(first, int(TERM)), (first + _TERM_GRACE, int(KILL))]
