"""Which trial may start now, and where: what it needs of a device, beside what runs there.

    Job ──provide()──▶ Provision ──place()──▶ device
              └──▶ Refused: told to the sampler, without a cell ever having run

The engine knows nothing of what needs the memory: whoever does is the Planner.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import Trial

from supermax.engine.answers import Answers
from supermax.engine.crew import Crew
from supermax.engine.events import Notice
from supermax.engine.faults import Kind
from supermax.engine.fleet import Cell
from supermax.engine.job import Attempt, Job
from supermax.engine.outcome import describe
from supermax.engine.policy import MOST_REPLANS, REFUSALS_HALT, Prune, Replan, constraint
from supermax.engine.provision import (
    Occupied,
    Planner,
    Refused,
    WrongAnswer,
    as_provided,
    as_room,
)
from supermax.errors import EnvironmentFault, RunHalted, UserError
from supermax.words import ended, in_short, size_text

LOOK_AGAIN = 5.0  # seconds, while somebody else has the memory
SAY_AGAIN = 600.0


class Admission:
    def __init__(
        self,
        planner: Planner | None,
        crew: Crew,
        answers: Answers,
        devices: Sequence[str],
        emit: Callable[[Notice], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planner = planner
        self._crew = crew
        self._answers = answers
        self._devices: list[str | None] = [*devices] or [None]
        self._emit = emit
        self._clock = clock
        self._waits: dict[int, float] = {}
        """Trials that do not fit although nothing runs, and when that was said last."""
        self._silent_until = -math.inf
        """Cells that were let go are given so long to be gone."""
        self._refusals = 0
        self._placed = False
        self.short = False
        """A trial waits for memory, which nobody will tell of when it is free again."""

    @property
    def plans(self) -> bool:
        return self._planner is not None

    def provide(self, job: Job) -> Refused | None:
        """See that the job has a provision; says why it cannot have one. While it waits although
        nothing runs, it is asked for anew: with what room there is now, it may be another."""
        if self._planner is None or (job.provision and job.number not in self._waits):
            return None
        trial = ForeseenTrial(self._answers, job)
        with self._blamed(f"what trial {job.number} needs"):
            found = as_provided(self._planner.provide(trial, list(job.too_large)))
        if isinstance(found, Refused):
            self._no_longer_waits(job)
            return found
        if job.provision is None or job.provision.reserve != found.reserve:
            job.provision = found
        return None

    def replan(self, job: Job) -> Replan | Prune:
        """Its memory did not do: in smaller steps, or not at all."""
        job.ran_short()
        if len(job.too_large) > MOST_REPLANS:
            return infeasible(Refused(f"{MOST_REPLANS} smaller plans did not do either."))
        if (refused := self.provide(job)) is not None:
            return infeasible(refused)
        if job.provision is not None and job.provision.how in job.too_large:
            job.provision = None
            return infeasible(Refused("Its planner offers again what was too large."))
        return Replan()

    def consider_halting(self, refused: Refused) -> None:
        """Another trial was told as infeasible before it had a cell, and none ever succeeded:
        where nothing can run, going on would only use up thousands more."""
        self._refusals += 1
        if not self._placed and self._refusals >= REFUSALS_HALT:
            last = in_short(describe(refused.error).message, 500)
            raise RunHalted(
                f"The first {self._refusals} trials of this run were all refused before they "
                f"could start, and none has ever succeeded. The last one: {ended(last)} Give the "
                f"run more memory, or search among smaller values, then call again."
            )

    def place(self, job: Job | None, running: Iterable[Attempt]) -> Cell | None:
        """An idle cell for the job where there is room for it; None: not now. Of devices with
        room, the one with the fewest trials, and of those the one it fills best."""
        attempts = list(running)
        busy = [attempt.cell for attempt in attempts]
        fresh = job is not None and job.needs_fresh_cell
        if job is None or job.provision is None:
            return self._crew.pick(fresh=fresh, busy=busy)
        with self._blamed(f"what room there is for trial {job.number}"):
            rooms = {device: self._room(device, attempts, fresh) for device in self._devices}
        load = Counter(cell.device for cell in busy)
        found = [d for d, room in rooms.items() if room is None or room >= job.provision.reserve]
        self.short = not found
        if found:
            self._no_longer_waits(job)
        elif not self._let_go_of_used(every=fresh or not attempts) and not attempts:
            self._wait(job, max(room for room in rooms.values() if room is not None))
        found.sort(key=lambda device: (load[device], rooms[device] or 0))
        cell = self._crew.pick(fresh=fresh, busy=busy, devices=found)
        self._placed |= cell is not None
        return cell

    def _let_go_of_used(self, *, every: bool) -> bool:
        """Idle cells keep what they have loaded; says whether any went."""
        gone = self._crew.let_go_of_used()
        for device in self._devices if every else ():
            while any(cell.trials for cell in self._crew.idle_on(device)):
                cell = self._crew.pick(fresh=False, busy=(), devices=[device])  # the most used
                assert cell is not None
                self._crew.dismiss(cell)
                gone = True
        if gone:
            self._silent_until = self._clock() + LOOK_AGAIN
        return gone

    def _wait(self, job: Job, room: int) -> None:
        assert job.provision is not None
        now = self._clock()
        if now < self._silent_until or now - self._waits.get(job.number, -math.inf) < SAY_AGAIN:
            return
        self._waits[job.number] = now
        needed, there = size_text(job.provision.reserve), size_text(max(0, room))
        self._emit(
            Notice(
                f"Trial {job.number} waits: it needs {needed} of memory and there is room for "
                f"{there}, although nothing of this run is running. Free some memory, or stop the "
                f"run and search among smaller values."
            )
        )

    def _no_longer_waits(self, job: Job) -> None:
        self.short = False
        self._waits.pop(job.number, None)

    def _room(self, device: str | None, attempts: list[Attempt], fresh: bool) -> int | None:
        assert self._planner is not None
        here = [a for a in attempts if a.cell.device == device]
        kept = sum(a.job.provision.reserve for a in here if a.job.provision is not None)
        idle = [cell for cell in self._crew.idle_on(device) if cell.trials]
        pids = {cell.pid for cell in (*idle, *(a.cell for a in here)) if cell.pid}
        occupied = Occupied(device, kept, len(idle), frozenset(pids), fresh)
        return as_room(self._planner.room(occupied))

    @contextlib.contextmanager
    def _blamed(self, asked: str) -> Iterator[None]:
        """A planner that cannot answer, or not so that it can be used, is named."""
        try:
            yield
        except EnvironmentFault:
            raise
        except Exception as error:
            why = _wrong(error)
            name = type(self._planner).__name__
            raise UserError(f"The planner {name}, asked {asked}, {why}.") from error


def _wrong(error: Exception) -> str:
    if isinstance(error, WrongAnswer):
        return str(error)
    told = describe(error)
    said = f": {in_short(told.message)}" if told.message else ""
    return f"raised {told.type}{said} ({told.where})"


def infeasible(refused: Refused) -> Prune:
    told = describe(refused.error)
    return Prune(constraint(Kind.INFEASIBLE), told.infeasible_by or 1.0, told.message)


class ForeseenTrial(Trial):
    """A claimed trial before it has a cell: what it suggests is drawn now, and kept."""

    def __init__(self, answers: Answers, job: Job) -> None:
        self.__dict__.update(vars(job.trial))
        self._answers, self._job = answers, job

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        return self._answers.suggest(self._job, name, distribution)
