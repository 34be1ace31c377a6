"""Deadlines of running attempts: trial timeout, stall timeout, and stopping.

deadline passed ──▶ SIGUSR2 (dump the stack) ──▶ SIGTERM ──▶ grace period ──▶ SIGKILL to the group
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from supermax.engine.jobs.job import Attempt
from supermax.engine.processes.executor import KILL, SHOW_STACK, TERM, Executor
from supermax.engine.trial.faults import KilledFor

_STACK_PAUSE = 0.3  # seconds for a hung cell to write its stack to the log
_TERM_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_STOP_GRACE = 30.0  # seconds for a trial that does not report to end with its run
_KILL_AGAIN = 1.0  # seconds until SIGKILL is repeated


class Deadlines:
    """Enforces the timeouts, in seconds; None: no limit."""

    def __init__(
        self, processes: Executor, trial_timeout: float | None, stall_timeout: float | None
    ) -> None:
        self._processes = processes
        self._trial_timeout = trial_timeout
        self._stall_timeout = stall_timeout

    def due(self, attempts: Iterable[Attempt]) -> list[float]:
        """Return the moments of time.monotonic() at which enforce must be called."""
        due = []
        for attempt in attempts:
            due += [when for when, _ in attempt.pending_signals[:1]]
            if attempt.killed_for is None:
                due += [when for when, _, _ in self._limits(attempt)]
        return due

    def enforce(self, attempts: Iterable[Attempt]) -> None:
        now = time.monotonic()
        for attempt in attempts:
            passed = [limit for limit in self._limits(attempt) if limit[0] <= now]
            if attempt.killed_for is None and passed:
                self._time_out(attempt, *passed[0][1:])
            elif attempt.pending_signals and attempt.pending_signals[0][0] <= now:
                self._send_next_signal(attempt, now)

    def schedule_stop(self, attempt: Attempt) -> None:
        """Give the attempt _STOP_GRACE seconds to end with its run."""
        attempt.pending_signals = attempt.pending_signals or _signals_from(
            time.monotonic() + _STOP_GRACE
        )

    def kill_disconnected(self, attempt: Attempt) -> None:
        """Kill a disconnected cell after a grace period. Usually it is exiting already."""
        if not attempt.pending_signals:
            attempt.kill_reason = KilledFor.DISCONNECTED
            attempt.pending_signals = [(time.monotonic() + _TERM_GRACE, int(KILL))]

    def _limits(self, attempt: Attempt) -> list[tuple[float, KilledFor, float]]:
        """Return (moment, reason, timeout) of the trial timeout and of the stall timeout. The
        latter applies from the first report on."""
        limits = []
        if (seconds := self._trial_timeout) is not None:
            limits.append((attempt.started + seconds, KilledFor.TIMEOUT, seconds))
        if (seconds := self._stall_timeout) is not None and attempt.last_step is not None:
            limits.append((attempt.last_message + seconds, KilledFor.STALL, seconds))
        return limits

    def _time_out(self, attempt: Attempt, why: KilledFor, limit: float) -> None:
        """Ask for the stack, and schedule the signals that end the attempt."""
        if why is KilledFor.STALL and self._processes.has_pending(attempt.cell):
            attempt.last_message = time.monotonic()  # its report is in the socket, not yet read
            return
        attempt.killed_for = why
        attempt.limit = limit
        self._processes.signal(attempt.cell, SHOW_STACK, group=False)
        attempt.pending_signals = _signals_from(time.monotonic() + _STACK_PAUSE)

    def _send_next_signal(self, attempt: Attempt, now: float) -> None:
        _, signum = attempt.pending_signals[0]
        attempt.killed_for = attempt.killed_for or attempt.kill_reason
        self._processes.signal(attempt.cell, signum)
        attempt.pending_signals = attempt.pending_signals[1:] or [(now + _KILL_AGAIN, int(KILL))]


def _signals_from(first: float) -> list[tuple[float, int]]:
    """Return the schedule of SIGTERM at `first`, then SIGKILL."""
    return [(first, int(TERM)), (first + _TERM_GRACE, int(KILL))]
