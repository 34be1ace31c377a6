"""ask → launch → watch → tell: the one loop, and the study's only writer.

    study.ask ─▶ Job ─▶ idle cell ─▶ messages ─▶ Evidence ─▶ fault? ─▶ decision ─▶ study.tell
                  ▲                                                       │
                  └────────────────── retry, after a pause ◀──────────────┘

One blocking wait (fleet.wait). A cell that has something unread in its socket, or waits for an
answer, is not silent: a slow storage, sampler or callback never makes a living cell look dead.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.engine import events as say
from supermax.engine import kernel, policy
from supermax.engine.admission import LOOK_AGAIN, Admission
from supermax.engine.answers import Answers, snapshot
from supermax.engine.crew import Crew
from supermax.engine.faults import Evidence, Fault, KilledFor, classify
from supermax.engine.fleet import (
    KILL,
    Cell,
    CellGone,
    CellMute,
    CellReady,
    Fleet,
    Heard,
    KeeperGone,
    ObjectiveBroken,
    ObjectiveLoaded,
)
from supermax.engine.folder import StudyFolder
from supermax.engine.job import Attempt, Job
from supermax.engine.logs import tail_of
from supermax.engine.notes import readable
from supermax.engine.outcome import INTERRUPTED, PRUNED, RAISED, Outcome, describe
from supermax.engine.protocol import Exited, Finished, Message, Note, Report, Stop, StopStudy, Task
from supermax.engine.provision import Planner, Refused
from supermax.engine.resume import standing_outcome
from supermax.engine.sampling import exhausted
from supermax.engine.storage import PatientStorage
from supermax.engine.telling import halting_words, succeeded, tell
from supermax.engine.watch import Watch
from supermax.errors import EnvironmentFault, RunHalted
from supermax.naming import plain_params
from supermax.words import in_short

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_LONGEST_WAIT = 3600.0  # what the system call takes; then the deadlines are looked at anew
_RECOUNT = 5.0  # seconds; others may finish trials of the same study
Callback = Callable[[Study, FrozenTrial], None]


@dataclass(frozen=True)
class Options:
    n_trials: int | None = None
    timeout: float | None = None  # seconds from the first cell's being ready
    deadline: float | None = None  # time.monotonic(), starting processes included
    workers: int = 1
    reuse_cells: bool = False
    trial_timeout: float | None = None
    stall_timeout: float | None = None
    retries: int = 2
    devices: Sequence[int | str] = ()
    callbacks: Sequence[Callback] = ()
    planner: Planner | None = None


class Coordinator:
    """State of the loop. `waiting` are claimed trials without a cell; `attempts` have one."""

    def __init__(
        self,
        study: Study,
        storage: PatientStorage,
        folder: StudyFolder,
        fleet: Fleet,
        answers: Answers,
        options: Options,
        emit: Callable[[say.Event], None],
        *,
        volatile: bool,
    ) -> None:
        self.study = study
        self.storage = storage
        self.folder = folder
        self.fleet = fleet
        self.answers = answers
        self.options = options
        self.emit = emit
        self.volatile = volatile
        devices = tuple(map(str, options.devices))
        self.crew = Crew(
            fleet, options.workers, options.reuse_cells, devices, emit, storage.patience
        )
        self.watch = Watch(fleet, options.trial_timeout, options.stall_timeout)
        self.admission = Admission(options.planner, self.crew, answers, devices, emit)
        self.waiting: list[Job] = []
        self.attempts: dict[int, Attempt] = {}  # by cell number
        self.faults: Counter[str] = Counter()
        self.retries = 0
        self.told = 0
        self.stop_reason: str | None = None
        self.ever_succeeded = False
        self.settling = False
        self.failures: list[str] = []
        self._first_cell: float | None = None  # when it was ready
        self._counted = 0.0
        self._finished = 0
        self._again = False
        self.stop_asked: str | None = None  # and not heeded yet

    # The loop.

    def run(self, leftovers: Sequence[Job]) -> None:
        self.recount()
        self.settling = True
        for job in leftovers:
            self.take_up(job)
            job.provision = None  # planned for an earlier run's device
        self.settling = False
        if exhausted(self.study):
            self.study._stop_flag = True
        if self.more_to_come():
            self.fleet.start_keeper()
        while True:
            self.heed_stop()
            self.fill()
            if not self.attempts and not self.more_to_come():
                return
            for event in self.fleet.wait(self.next_deadline()):
                self.handle(event)
            self.crew.enforce_deadlines()
            self.watch.enforce(self.attempts.values())

    def request_stop(self, reason: str) -> None:
        """End the run cleanly; may be called from a signal handler."""
        self.stop_asked = reason
        self.storage.patience.stop_soon()
        self.fleet.wake()

    def heed_stop(self) -> None:
        if time.monotonic() >= self.pauses_at():
            self.stop_asked = self.stop_asked or "timeout"
        if self.stop_asked and not self.stop_reason:
            self.stop_reason = self.stop_asked
            self.emit(say.RunStopping(self.stop_reason, len(self.attempts)))
            for attempt in self.attempts.values():
                self.fleet.send(attempt.cell, Stop())
                self.watch.wind_down(attempt)

    def pauses_at(self) -> float:
        """Moment at which the run pauses; infinite without a limit, or before there is a cell."""
        timeout, deadline = self.options.timeout, self.options.deadline
        at = math.inf if deadline is None else deadline
        if timeout is None or self._first_cell is None:
            return at
        return min(at, self._first_cell + timeout)

    def more_to_come(self) -> bool:
        """True while trials shall be launched that are not running yet."""
        if self.stop_reason:
            return False
        return bool(self.waiting and self.room(len(self.attempts))) or self.wants_new()

    def wants_new(self) -> bool:
        if self.study._stop_flag or self.stop_reason:
            return False
        return self.room(len(self.attempts) + len(self.waiting))

    def room(self, claimed: int) -> bool:
        target = self.options.n_trials
        return target is None or self._finished + claimed < target

    def left_to_launch(self) -> int:
        """How many launches are still to be expected, as far as cells are to be kept ready."""
        if not self.more_to_come():
            return 0
        if self.study._stop_flag:
            return len(self.waiting)
        target = self.options.n_trials
        if target is None:
            return self.options.workers
        return target - self._finished - len(self.attempts)

    def recount(self) -> None:
        """Others may work on the study too: now and then look how many trials are finished."""
        self.storage.check_file()
        trials = self.storage.get_all_trials(self.study._study_id, deepcopy=False)
        states = Counter(trial.state for trial in trials)
        self._finished = sum(states[state] for state in FINISHED)
        self.ever_succeeded |= any(map(succeeded, trials))
        self._counted = time.monotonic()

    # Launching.

    def fill(self) -> None:
        """Give every idle worker something to do."""
        now = time.monotonic()
        if now - self._counted > _RECOUNT:
            self.recount()
        self.crew.keep_ready(self.left_to_launch(), len(self.attempts))
        while len(self.attempts) < self.options.workers and self.more_to_come():
            due = [job for job in self.waiting if job.not_before <= time.monotonic()]
            if not due and not self.wants_new():
                return
            if not due and self.admission.plans and self.crew.has_idle:
                due = [self.ask()]
                self.waiting.append(due[0])
            job = due[0] if due else None
            if job is not None and (refused := self.admission.provide(job)) is not None:
                self.waiting.remove(job)
                self.refuse(job, refused)
                return
            cell = self.admission.place(job, self.attempts.values())
            if cell is None:
                return
            if job is not None:
                self.waiting.remove(job)
            self.launch(job or self.ask(), cell)

    def ask(self) -> Job:
        trial = self.study.ask()
        return Job(trial, self.folder.trial(trial.number))

    def refuse(self, job: Job, refused: Refused) -> None:
        """It can be known that the trial cannot run: the sampler is told, and no cell is used."""
        outcome = Outcome(job.attempt, RAISED, raised=describe(refused.error))
        self.conclude(job, Evidence(outcome=outcome, directions=len(self.study.directions)))
        self._again = True  # what there was to do is not done
        if not self.ever_succeeded:
            self.admission.consider_halting(refused)

    def launch(self, job: Job, cell: Cell) -> None:
        job.launch(cell)
        task = Task(
            folder=str(job.folder.path),
            attempt=job.attempt,
            study_name=self.study.study_name,
            study_id=self.study._study_id,
            directions=[int(direction) for direction in self.study.directions],
            trial=snapshot(job),
            env={"CUDA_LAUNCH_BLOCKING": "1"} if job.blocking_launches else {},
            volatile=self.volatile,
            plan=job.provision.how if job.provision is not None else None,
        )
        attempt = Attempt(job, cell, kernel.oom_kills())
        self.attempts[cell.number] = attempt
        self.fleet.give(cell, task, job.folder.log)
        kept = job.provision.reserve if job.provision is not None else None
        self.emit(say.TrialStarted(job.number, job.attempt, cell.number, attempt.started, kept))

    # Hearing.

    def handle(self, event: object) -> None:
        match event:
            case Heard(cell, message):
                if (attempt := self.attempts.get(cell.number)) is not None:
                    self.hear(attempt, message)
            case CellReady(cell):
                self._first_cell = self._first_cell or time.monotonic()
                self.crew.came_up(cell)
            case CellMute(cell):
                if (attempt := self.attempts.get(cell.number)) is not None:
                    self.watch.mute(attempt)
            case CellGone(cell, exit):
                self.cell_gone(cell, exit)
            case KeeperGone(cells):
                for cell in cells:
                    self.cell_gone(cell, Exited(cell.number, None, int(KILL), 0, 0))
                self.crew.keeper_gone(tail_of(self.folder.keeper_log))
            case ObjectiveLoaded(why_not_fork):
                self.crew.loaded(why_not_fork)
            case ObjectiveBroken(error, traceback):
                self.crew.broken(error, traceback)

    def hear(self, attempt: Attempt, message: Message) -> None:
        attempt.last_heard = time.monotonic()
        match message:
            case Finished(fields, unclean, written):
                try:
                    outcome = Outcome.from_json(fields)
                except Exception as error:
                    self.reject(attempt, error)
                    return
                if not written:
                    attempt.job.folder.write_outcome(outcome)
                del self.attempts[attempt.cell.number]
                self.came_to(attempt, outcome, unclean)
            case StopStudy():
                self.study._stop_flag = True
            case Report(step, value, written):
                if not written:
                    attempt.job.folder.append_report(attempt.job.attempt, step, value)
                self.note(attempt, step, value)
            case Note(facts):
                self.emit(say.TrialNoted(attempt.job.number, readable(facts)))
            case _:
                self.fleet.send(attempt.cell, self.answers.to(attempt, message))
                attempt.last_heard = time.monotonic()  # the time it waited for us is not its own

    def note(self, attempt: Attempt, step: int, value: float) -> None:
        try:
            self.answers.note(attempt, step, value)
        except EnvironmentFault:
            raise
        except UpdateFinishedTrialError:
            number = attempt.job.number
            self.emit(say.Notice(f"Trial {number} was finished by somebody else; it is let go."))
            self.end_now(attempt, "its trial was finished by somebody else")
            self.emit(say.TrialPaused(number))
            self.recount()
        except Exception as error:  # a step the database has no room for, say
            self.reject(attempt, error)
        else:
            self.emit(say.TrialReported(attempt.job.number, step, value))

    def reject(self, attempt: Attempt, error: Exception) -> None:
        """What a cell says makes no sense or cannot be stored: that is its trial's own trouble."""
        self.end_now(attempt, "what it said could not be stored")
        outcome = Outcome(attempt.job.attempt, RAISED, raised=describe(error))
        self.conclude(attempt.job, self.evidence(attempt, outcome))

    def end_now(self, attempt: Attempt, why: str) -> None:
        del self.attempts[attempt.cell.number]
        self.crew.dismiss(attempt.cell, why)
        self.fleet.signal(attempt.cell, KILL)

    def came_to(self, attempt: Attempt, outcome: Outcome, unclean: str | None) -> None:
        job = attempt.job
        if outcome.state == INTERRUPTED:
            self.crew.dismiss(attempt.cell)
            self.put_back(job)
            return
        evidence = self.evidence(attempt, outcome)
        fault = classify(evidence)
        healthy = (fault is None or fault.harmless) and unclean is None
        if unclean is not None:
            job.note_unclean(unclean)
        self.crew.served(attempt.cell, healthy, unclean)
        self.conclude(job, evidence)

    def cell_gone(self, cell: Cell, exit: Exited) -> None:
        attempt = self.attempts.pop(cell.number, None)
        self.crew.gone(cell, exit, tail_of(self.folder.keeper_log), ran=attempt is not None)
        if attempt is None:
            return
        outcome = standing_outcome(attempt.job)
        if outcome is None and attempt.killed_for is KilledFor.STOP:
            self.put_back(attempt.job)
            return
        self.conclude(attempt.job, self.evidence(attempt, outcome, exit))

    def put_back(self, job: Job) -> None:
        """The run is stopping: the trial stays claimed and goes on next time."""
        job.note_stop()
        self.waiting.append(job)
        self.emit(say.TrialPaused(job.number))

    def evidence(
        self, attempt: Attempt, outcome: Outcome | None, exit: Exited | None = None
    ) -> Evidence:
        peak = outcome.peak_rss if outcome else (exit.max_rss if exit else None)
        return Evidence(
            outcome=outcome,
            exit_code=exit.code if exit else None,
            signum=exit.signum if exit else None,
            killed_for=attempt.killed_for,
            oom_kills=max(0, kernel.oom_kills() - attempt.oom_kills_before) if exit else 0,
            fresh_cell=attempt.cell.trials <= 1,
            directions=len(self.study.directions),
            seconds=time.monotonic() - attempt.started,
            limit=attempt.limit,
            last_step=attempt.last_step,
            peak_rss=peak,
            log_tail=tail_of(attempt.job.folder.log) if outcome is None else "",
        )

    # Concluding.

    def take_up(self, job: Job) -> None:
        """A trial that an earlier run had claimed: tell what it came to, or go on with it."""
        outcome = standing_outcome(job)
        try:
            self.answers.catch_up(job)
        except EnvironmentFault:
            raise
        except Exception as error:  # a step the database has no room for, say
            self.emit(
                say.Notice(
                    f"Trial {job.number}: its reports cannot be stored ({in_short(error)})."
                )
            )
        if outcome is not None:
            self.conclude(job, Evidence(outcome=outcome, directions=len(self.study.directions)))
        elif job.last_fault is not None:
            self.act(job, job.last_fault, Evidence())
        else:
            self.waiting.append(job)

    def conclude(self, job: Job, evidence: Evidence) -> None:
        fault = classify(evidence)
        if fault is not None:
            self.act(job, fault, evidence)
        elif evidence.outcome is not None:
            pruned = evidence.outcome.state == PRUNED
            state = TrialState.PRUNED if pruned else TrialState.COMPLETE
            self.finish(job, state, evidence)

    def act(self, job: Job, fault: Fault, evidence: Evidence) -> None:
        planned = self.admission.plans and job.provision is not None and bool(job.provision.how)
        decision = policy.decide(fault, job.faults, self.options.retries, planned)
        if isinstance(decision, policy.Replan):
            decision = self.admission.replan(job)
        fault = policy.as_decided(fault, decision)
        words = job.note_fault(fault, decision, evidence)
        if self.settling:
            words = f"{words} (it had ended so in an earlier run)"
        else:
            self.faults[fault.name] += 1
        self.emit(
            say.FaultSeen(
                job.number, job.attempt, fault.name, str(fault.culprit), fault.message, words
            )
        )
        match decision:
            case policy.Retry() | policy.Replan():
                self.retries += 1
                job.go_on(decision, evidence.lasted)
                self.waiting.append(job)
            case policy.Prune(name, value):
                self.finish(job, TrialState.PRUNED, evidence, (name, value))
            case policy.Fail():
                self.finish(job, TrialState.FAIL, evidence)
                self.consider_halting(fault, evidence)

    def consider_halting(self, fault: Fault, evidence: Evidence) -> None:
        if self.settling:  # what an earlier run's objective did says nothing of today's
            return
        self.failures.append(fault.signature)
        if evidence.outcome and policy.halts(self.failures, self.ever_succeeded):
            raised = evidence.outcome.raised
            raise RunHalted(halting_words(fault, raised, len(self.failures)))

    def finish(
        self,
        job: Job,
        state: TrialState,
        evidence: Evidence,
        constraint: tuple[str, float] | None = None,
    ) -> None:
        told = tell(self.study, self.storage, job, state, evidence, constraint)
        if told.trouble is not None:
            kind = type(told.trouble).__name__
            self.emit(say.Notice(f"The sampler raised {kind}: {told.trouble}"))
        self._finished += 1
        self.told += 1
        self.crew.trial_finished()
        self.ever_succeeded |= constraint is None and told.state is not TrialState.FAIL
        self.emit(
            say.TrialFinished(
                number=job.number,
                state=told.state.name,
                values=tuple(told.values) if told.values is not None else None,
                params=plain_params(job.trial._cached_frozen_trial),
                attempts=job.attempt,
                seconds=job.spent + evidence.lasted,
                finished=self._finished,
            )
        )
        if self.options.callbacks:
            frozen = self.storage.get_trial(job.trial._trial_id)
            for callback in self.options.callbacks:
                callback(self.study, copy.deepcopy(frozen))
            self._counted = 0.0  # they may have added trials

    def next_deadline(self) -> float | None:
        """Seconds until something is due, or None to wait for ever."""
        now = time.monotonic()
        if self._again:
            self._again = False
            return 0.0
        due = [self.crew.next_deadline(), *self.watch.due(self.attempts.values())]
        if self.admission.short and not self.stop_reason:
            due.append(now + LOOK_AGAIN)
        if not self.stop_reason:
            due.append(self.pauses_at())
            due += [job.not_before for job in self.waiting if job.not_before > now]
        soonest = min(due)
        return None if soonest == math.inf else min(max(0.0, soonest - now), _LONGEST_WAIT)
