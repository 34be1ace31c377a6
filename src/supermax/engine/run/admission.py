"""Admission control: which trial may start now, and on which device, by its memory needs.

    Job ──provide()──▶ Provision ──place()──▶ cell on a device
              └──▶ Refusal: reported to the sampler as infeasible, without a cell

The Planner knows what needs the memory; the engine does not.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from optuna.distributions import BaseDistribution
from optuna.trial import Trial

from supermax._util.text import ended, in_short, size_text
from supermax.engine.events import Notice
from supermax.engine.jobs.job import Attempt, Job
from supermax.engine.jobs.policy import MOST_REPLANS, REFUSALS_HALT, Prune, Replan, constraint
from supermax.engine.jobs.provision import (
    DeviceUsage,
    InvalidAnswer,
    Planner,
    Refusal,
    checked_provision,
    checked_room,
)
from supermax.engine.processes.executor import Cell, machine_of
from supermax.engine.processes.pool import Pool
from supermax.engine.run.requests import RequestHandler
from supermax.engine.storage.leases import LeaseLost
from supermax.engine.storage.patient import StudyDeleted
from supermax.engine.trial.faults import Kind
from supermax.engine.trial.outcome import describe
from supermax.errors import EnvironmentFault, RunHalted, UserError

RECHECK_INTERVAL = 5.0
"""Seconds between two checks of whether other programs have freed memory."""
NOTICE_INTERVAL = 600.0
"""Seconds between two notices about a trial that waits for memory."""


class Admission:
    """Places trials on devices with enough free memory. Without a planner any idle cell will
    do."""

    def __init__(
        self,
        planner: Planner | None,
        pool: Pool,
        requests: RequestHandler,
        emit: Callable[[Notice], None],
        configure: Callable[[Trial], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planner, self._configure = planner, configure
        self._pool = pool
        self._requests = requests
        self._emit = emit
        self._clock = clock
        self._waits: dict[int, float] = {}
        """Numbers of trials that do not fit although nothing runs → moment of the last notice."""
        self._silent_until = -math.inf
        """Moment until which no notice is emitted: dismissed cells are still freeing memory."""
        self._refusals = 0
        self._placed = False
        self.waiting_for_memory = False
        """True: a trial waits for memory. No event announces free memory: check again
        regularly."""

    def must_wait(self, job: Job) -> bool:
        """Return whether a job waits for another GPU or machine than those it failed on."""
        others = self._untried(job)
        return bool(others) and self._pool.lacks_cell_on(others)

    def _untried(self, job: Job) -> list[str]:
        """Return the devices for a job that failed on some; []: any will do."""
        if not job.failed_on:
            return []
        return [name for name in self._pool.devices if machine_of(name) not in job.failed_on]

    @property
    def plans(self) -> bool:
        return self._planner is not None

    @property
    def samples_first(self) -> bool:
        """True: parameters are sampled before a trial has a cell."""
        return self._planner is not None or self._configure is not None

    def configure(self, job: Job) -> None:
        """Sample the parameters of a trial that has not run yet, unless that is done."""
        if self._configure is None or job.configured:
            return
        job.configured = True
        with self._requests.stored_together(job):
            try:
                self._configure(PlannerTrial(self._requests, job))
            except (EnvironmentFault, LeaseLost, StudyDeleted):
                raise
            except Exception:  # raised again in its cell, and reported as the trial's error
                return

    def provide(self, job: Job) -> Refusal | None:
        """Have the planner provide for the job; return its refusal, or None.

        A job that waits although nothing runs is planned again: with the memory that is free now,
        the plan may be another.
        """
        if self._planner is None or (job.provision and job.number not in self._waits):
            return None
        trial = PlannerTrial(self._requests, job)
        with (
            self._requests.stored_together(job),
            self._planner_errors(f"what trial {job.number} needs"),
        ):
            answer = checked_provision(self._planner.provide(trial, list(job.failed_plans)))
        if isinstance(answer, Refusal):
            self._stop_waiting(job)
            return answer
        if job.provision is None or job.provision.reserve != answer.reserve:
            job.provision = answer
        return None

    def replan(self, job: Job) -> Replan | Prune:
        """Plan a trial again that ran out of memory; Prune: no plan is left."""
        job.discard_plan()
        if len(job.failed_plans) > MOST_REPLANS:
            return infeasible(Refusal(f"{MOST_REPLANS} more plans ran out of memory as well."))
        if (refused := self.provide(job)) is not None:
            return infeasible(refused)
        if job.provision is not None and job.provision.plan in job.failed_plans:
            job.provision = None
            return infeasible(Refusal("The planner returned a plan that was too large before."))
        return Replan()

    def halt_if_all_refused(self, refused: Refusal) -> None:
        """Raise RunHalted when the first trials were all refused and none has ever succeeded: the
        run would only report thousands more as infeasible."""
        self._refusals += 1
        if not self._placed and self._refusals >= REFUSALS_HALT:
            last = in_short(describe(refused.error).message, 500)
            raise RunHalted(
                f"The first {self._refusals} trials of this run were all refused before they "
                f"could start, and none has ever succeeded. The last one: {ended(last)} Give the "
                f"run more memory, or restrict the space to smaller values, then call again."
            )

    def place(self, job: Job | None, running: Iterable[Attempt]) -> Cell | None:
        """Take an idle cell on a device with enough free memory for the job; None: there is none.

        Prefer the device with the fewest trials, then the one with the least free memory.
        """
        if self._pool.has_hosts and not self._pool.devices:
            return None
        attempts = list(running)
        busy = [attempt.cell for attempt in attempts]
        fresh = job is not None and job.needs_fresh_cell
        untried = self._untried(job) if job is not None else []
        if job is None or job.provision is None:
            return self._pool.pick(fresh=fresh, busy=busy, devices=untried or None)
        if not (devices := self._devices()):  # all are being probed
            return None
        with self._planner_errors(f"what room there is for trial {job.number}"):
            free = {device: self._free_bytes(device, attempts, fresh) for device in devices}
        load = Counter(cell.device for cell in busy)
        needed = job.provision.reserve
        fitting = [device for device, size in free.items() if size is None or size >= needed]
        self.waiting_for_memory = not fitting
        if fitting:
            self._stop_waiting(job)
        elif not self._dismiss_used(every=fresh or not attempts) and not attempts:
            self._wait(job, max(size for size in free.values() if size is not None))
        fitting.sort(key=lambda device: (load[device], free[device] or 0))
        fitting = [device for device in fitting if device in untried] or fitting
        cell = self._pool.pick(fresh=fresh, busy=busy, devices=fitting)
        self._placed |= cell is not None
        return cell

    def _devices(self) -> list[str | None]:
        every: list[str | None] = [*self._pool.devices] or [None]
        return [device for device in every if not self._pool.pauses(device)]

    def _dismiss_used(self, *, every: bool) -> bool:
        """Dismiss idle cells that hold memory of earlier trials, one per device excepted unless
        `every`; return whether there were any."""
        dismissed = self._pool.dismiss_surplus()
        for device in self._devices() if every else ():
            while any(cell.trials for cell in self._pool.idle_on(device)):
                cell = self._pool.pick(fresh=False, busy=(), devices=[device])  # the most used
                assert cell is not None
                self._pool.dismiss(cell)
                dismissed = True
        if dismissed:
            self._silent_until = self._clock() + RECHECK_INTERVAL
        return dismissed

    def _wait(self, job: Job, free: int) -> None:
        """Note that the job waits for memory, and emit a notice from time to time."""
        assert job.provision is not None
        now = self._clock()
        if (
            now < self._silent_until
            or now - self._waits.get(job.number, -math.inf) < NOTICE_INTERVAL
        ):
            return
        self._waits[job.number] = now
        needed, available = size_text(job.provision.reserve), size_text(max(0, free))
        self._emit(
            Notice(
                f"Trial {job.number} waits: it needs {needed} of memory and {available} are free, "
                f"although no trial of this run is running. End other programs that use the "
                f"memory, or stop the run and restrict the space to smaller values."
            )
        )

    def _stop_waiting(self, job: Job) -> None:
        self.waiting_for_memory = False
        self._waits.pop(job.number, None)

    def _free_bytes(self, device: str | None, attempts: list[Attempt], fresh: bool) -> int | None:
        assert self._planner is not None
        here = [a for a in attempts if a.cell.device == device]
        reserved = sum(a.job.provision.reserve for a in here if a.job.provision is not None)
        idle = [cell for cell in self._pool.idle_on(device) if cell.trials]
        pids = {cell.pid for cell in (*idle, *(a.cell for a in here)) if cell.pid}
        occupied = DeviceUsage(device, reserved, len(idle), frozenset(pids), fresh)
        return checked_room(self._planner.room(occupied))

    @contextlib.contextmanager
    def _planner_errors(self, asked: str) -> Iterator[None]:
        """Raise errors and invalid results of the planner as a UserError that names it."""
        try:
            yield
        except (EnvironmentFault, LeaseLost, StudyDeleted):
            raise
        except Exception as error:
            why = _error_text(error)
            name = type(self._planner).__name__
            raise UserError(f"The planner {name}, asked {asked}, {why}.") from error


def _error_text(error: Exception) -> str:
    if isinstance(error, InvalidAnswer):
        return str(error)
    raised = describe(error)
    message = f": {in_short(raised.message)}" if raised.message else ""
    return f"raised {raised.type}{message} ({raised.where})"


def infeasible(refused: Refusal) -> Prune:
    """Return the decision to prune a refused trial with a constraint."""
    raised = describe(refused.error)
    return Prune(constraint(Kind.INFEASIBLE), raised.infeasible_by or 1.0, raised.message)


class PlannerTrial(Trial):
    """Claimed trial without a cell, for planners: parameters it suggests are sampled and
    stored."""

    def __init__(self, requests: RequestHandler, job: Job) -> None:
        self.__dict__.update(vars(job.trial))
        self._requests, self._job = requests, job

    def _suggest(self, name: str, distribution: BaseDistribution) -> object:
        return self._requests.suggest(self._job, name, distribution)
