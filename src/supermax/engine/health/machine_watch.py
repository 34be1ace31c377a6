"""Machines of a cluster in service: one on which trials fail that succeed on others is taken out.

would become FAIL ──may_try_elsewhere()──▶ one more attempt, on another machine
failed() ──▶ health.Streaks ◀── ended()
                  └──▶ bad: the pool starts no more cells there; the run continues
"""

from __future__ import annotations

from supermax.engine import events
from supermax.engine.health.streaks import Fate, Streaks, is_suspect
from supermax.engine.jobs import policy
from supermax.engine.jobs.job import Job
from supermax.engine.processes.pool import Pool
from supermax.engine.trial.faults import Fault, Kind

_OF_TRIAL_OR_LOST = {
    *(Kind.HOST_OOM, Kind.DEVICE_OOM, Kind.FRAGMENTED),
    *(Kind.NODE_LOST, Kind.COORDINATOR_LOST, Kind.GPU_LOST),
}
"""Faults that say nothing about the health of a machine."""


class MachineWatch:
    """Judges the machines of a cluster by the ends of attempts. On one machine it does nothing."""

    def __init__(self, pool: Pool, emit: events.Listener) -> None:
        self._pool, self._emit = pool, emit
        self._streaks = Streaks()

    def failed(self, job: Job, fault: Fault) -> None:
        """Note a fault that does not finish the trial by itself, and where it happened."""
        may_be = policy.may_be_of_machine(fault) and fault.kind not in _OF_TRIAL_OR_LOST
        if job.machine is not None and may_be:
            self._streaks.fail(job.number, job.machine, job.failed_on)
            job.failed_on |= {job.machine}
            self._judge()

    def may_try_elsewhere(self, job: Job) -> bool:
        """Return whether a trial that would become FAIL has failed on one of several machines."""
        return len(job.failed_on) == 1 and bool(self._pool.machines() - job.failed_on)

    def ended(self, job: Job, *, succeeded: bool) -> None:
        """Note the end of a trial, and take machines out of service that it proves bad."""
        if succeeded and job.machine is not None:
            self._streaks.succeed(job.number, job.machine, job.failed_on)
        elif not succeeded:
            self._streaks.resolve(job.number, job.failed_on, Fate.FAILED)
        self._judge()

    def _judge(self) -> None:
        for machine, trials in self._streaks.bad().items():
            del self._streaks.by_place[machine]
            why = f"trials {trials} failed on it and succeeded on other machines"
            self._emit(events.OutOfService(f"machine {machine}", why))
            self._emit(events.Notice(f"The machine {machine} is out of service: {why}."))
            self._pool.retire_machine(machine, "its machine was taken out of service")
        streaks = self._streaks.by_place.items()
        self._pool.suspects = {machine for machine, streak in streaks if is_suspect(streak)}
