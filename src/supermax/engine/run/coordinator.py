"""ask → launch → wait → tell: the loop of a run, and the study's only writer.

    study.ask ─▶ Job ─▶ idle cell ─▶ messages ─▶ Evidence ─▶ fault? ─▶ decision ─▶ study.tell
                  ▲                                                       │
                  └────────────────── retry, after a pause ◀──────────────┘

The loop has one blocking wait, `Executor.wait`. A cell with unread messages in its socket, or
one that waits for a reply, is not silent: a slow storage, sampler or callback never makes a
living cell look dead.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from optuna.study import Study

from supermax._util.text import in_short
from supermax.engine import events
from supermax.engine.health.gpu_watch import GpuWatch
from supermax.engine.jobs.job import Attempt, Job
from supermax.engine.jobs.provision import Refusal
from supermax.engine.processes.executor import (
    Cell,
    CellDisconnected,
    CellExited,
    CellReady,
    Executor,
    ForkServerDied,
    HostLost,
    HostReady,
    MessageReceived,
    ProcessEvent,
    exit_of_killed,
    machine_of,
)
from supermax.engine.processes.pool import Pool
from supermax.engine.processes.prestart import TAG
from supermax.engine.processes.protocol import (
    Exited,
    LoadFailed,
    Message,
    ObjectiveLoaded,
    Stop,
)
from supermax.engine.promotion.paused import PausedTrials
from supermax.engine.promotion.paused_space import PausedSpace
from supermax.engine.run.admission import RECHECK_INTERVAL, Admission
from supermax.engine.run.attempt_end import AttemptEnd
from supermax.engine.run.claimed import ClaimedTrials
from supermax.engine.run.deadlines import Deadlines
from supermax.engine.run.messages import Ended, FinishedElsewhere, MessageHandler, Unusable
from supermax.engine.run.no_gain import GainWatch
from supermax.engine.run.options import RunOptions
from supermax.engine.run.other_runs import OtherRuns
from supermax.engine.run.progress import StudyProgress
from supermax.engine.run.requests import RequestHandler
from supermax.engine.run.reuse import ResultReuse
from supermax.engine.sampling.bounded_sampler import prepare_next
from supermax.engine.sampling.seeded_samplers import exhausted
from supermax.engine.sharing.shared_run import SharedRun
from supermax.engine.storage.leases import LeaseLost, TargetReached
from supermax.engine.storage.logs import tail_of
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder
from supermax.engine.trial.faults import Evidence, Fault, KilledFor, classify
from supermax.engine.trial.outcome import INTERRUPTED, RAISED, Outcome, describe

_LONGEST_WAIT = 3600.0  # seconds; the longest that select() takes


class Coordinator:
    """The loop of a run. `trials` has its claimed trials, and decides which of them to launch."""

    def __init__(
        self,
        study: Study,
        storage: PatientStorage,
        folder: StudyFolder,
        processes: Executor,
        requests: RequestHandler,
        options: RunOptions,
        emit: events.Listener,
        shared: SharedRun | None,
    ) -> None:
        self.study, self.storage, self.folder = study, storage, folder
        self.processes, self.requests = processes, requests
        self.options, self.emit = options, emit
        self.pool = Pool(
            processes,
            options.workers,
            options.reuse_cells,
            tuple(map(str, options.devices)),
            emit,
            storage.patience,
            options.executor.trials if options.executor is not None else None,
        )
        self.deadlines = Deadlines(processes, options.trial_timeout, options.stall_timeout)
        self.gpus = GpuWatch(self.pool, emit, processes.wake, {TAG: storage.claim})
        self.admission = Admission(options.planner, self.pool, requests, emit, options.configure)
        self.reuse = ResultReuse(storage, len(study.directions))
        self.progress = StudyProgress(storage, options.n_trials, study.directions, emit)
        self.attempt_end = AttemptEnd(
            study, storage, self.progress, self.pool, self.admission, options, emit, shared
        )
        self.others = OtherRuns(
            shared, study, storage, folder, self.progress, emit, processes.wake
        )
        space = PausedSpace(options.paused_space, folder, emit)
        paused = PausedTrials(study, storage.history, emit, space)
        self.trials = ClaimedTrials(study, paused, self.progress, self.gpus, self.others)
        self.gains = GainWatch(study, options.stop, storage.history, emit)
        self.messages = MessageHandler(study, processes, requests, self.trials, emit)
        self.stop_reason: str | None = None
        self._timeout_from: float | None = None
        self._recheck_now = False
        self._looked_at = 0.0  # when pauses of trials were last compared with the clock
        self.stop_requested: str | None = None  # and not handled yet

    # The loop.

    def run(self, leftovers: Sequence[Job]) -> None:
        self.progress.recount()
        for job in leftovers:
            with contextlib.suppress(LeaseLost):  # another run has it already
                self.resume(job)
        if exhausted(self.study):
            self.study._stop_flag = True
        self.gains.begin()
        while True:
            self.stop_if_requested()
            try:
                self.settle_gpus()
                self.renew_leases()
                self.launch_trials()
                self.prune_paused()
            except LeaseLost as error:
                self.end_lost({error.trial_id})
                continue
            if not (self.trials.attempts or self.trials.any_left()):
                if not self.awaits_others():
                    return
                self.begin_timeout()
            if len(self.trials.attempts) == self.workers > 1 and self.trials.wants_new():
                prepare_next(self.study)
            for event in self.processes.wait(self.next_deadline()):
                try:
                    self.handle_event(event)
                except LeaseLost as error:
                    self.end_lost({error.trial_id})
            self.pool.enforce_deadlines()
            self.deadlines.enforce(self.trials.attempts.values())

    def request_stop(self, reason: str) -> None:
        """End the run cleanly; may be called from a signal handler."""
        self.stop_requested = reason
        self.storage.patience.stop_soon()
        self.processes.wake()

    def stop_if_requested(self) -> None:
        if time.monotonic() >= self.pause_deadline():
            self.stop_requested = self.stop_requested or "timeout"
        if self.stop_requested and not self.stop_reason:
            self.stop_reason = self.stop_requested
            self.trials.stopping = True
            self.emit(events.RunStopping(self.stop_reason, len(self.trials.attempts)))
            for attempt in self.trials.attempts.values():
                self.processes.send(attempt.cell, Stop())
                self.deadlines.schedule_stop(attempt)

    def begin_timeout(self) -> None:
        """Count `timeout` from now on: the first cell is ready, or the run waits for other runs
        and may never need one."""
        self._timeout_from = self._timeout_from or time.monotonic()

    def pause_deadline(self) -> float:
        """Moment at which the run pauses; infinite without a limit, or before it has begun."""
        return self.options.pauses_at(self._timeout_from)

    # Other runs on the same study.

    @property
    def workers(self) -> int:
        """Number of trials that may run at the same time now."""
        return self.others.allowed_workers(self.pool.workers)

    def renew_leases(self) -> None:
        self.end_lost(self.others.renew())
        self.others.judge()

    def awaits_others(self) -> bool:
        return not self.stop_reason and self.others.are_awaited()

    def end_lost(self, ids: set[int]) -> None:
        """End the attempts at trials that another run has taken over."""
        lost = self.trials.drop(ids)
        for attempt in list(self.trials.attempts.values()):
            if attempt.job.trial._trial_id in ids:
                self.kill(attempt, "another run has taken over its trial")
                lost.append(attempt.job)
        for job in lost:
            self.others.give_up(job)
            self.attempt_end.forget(job)
        if ids:
            self.progress.recount_soon()

    def take_over_trials(self) -> None:
        """Take over trials of runs that are gone, as far as workers are free."""
        if self.stop_reason:
            return
        free = self.workers - len(self.trials.attempts) - len(self.trials.waiting)
        for job in self.others.take_over(free):
            self.resume(job)

    # Launching.

    def launch_trials(self) -> None:
        """Launch trials until every worker is busy, or memory or the target allows no more."""
        self.look_at_gain()
        self.take_over_trials()
        self.pool.keep_ready(self.trials.launches_left(self.workers), len(self.trials.attempts))
        now = self._looked_at = time.monotonic()
        while len(self.trials.attempts) < self.workers and self.trials.any_left():
            job = self.trials.next_due(now, self.admission.must_wait)
            if job is None and not self.trials.wants_new():
                return
            if job is None and self.admission.samples_first and self.pool.has_idle:
                if (job := self.ask_trial()) is None:
                    return
                self.trials.waiting.append(job)
            if job is not None and self.has_known_result(job):
                return
            if job is not None and (refused := self.admission.provide(job)) is not None:
                self.trials.waiting.remove(job)
                self.refuse(job, refused)
                return
            cell = self.admission.place(job, self.trials.attempts.values())
            if cell is None:
                return
            if job is not None:
                self.trials.waiting.remove(job)
            elif (job := self.ask_trial()) is None:
                self.pool.put_back(cell)
                return
            self.launch(job, cell)

    def look_at_gain(self) -> None:
        """End the study by itself if that is wanted and no gain is expected."""
        if self.progress.recount_if_due() and self.storage.leases is not None:
            self.gains.look_at_others()
        self.gains.look(self.progress.finished, self.trials.paused)

    def ask_trial(self) -> Job | None:
        """Return a new trial; None: with those of other runs, the study has enough."""
        try:
            trial = self.study.ask()
        except TargetReached:
            self.progress.recount()
            return None
        return Job(trial, self.folder.trial(trial.number))

    def has_known_result(self, job: Job) -> bool:
        """Finish a trial without a cell if a completed one has had its configuration."""
        if self.options.configure is None or not job.is_new:
            return False
        self.admission.configure(job)
        if (original := self.reuse.original_of(job)) is None:
            return False
        evidence = self.reuse.copy_result(job, original)
        self.trials.waiting.remove(job)
        self.conclude(job, evidence, None, earlier_run=True)
        self._recheck_now = True  # an idle worker is still without a trial
        return True

    def refuse(self, job: Job, refused: Refusal) -> None:
        """End a trial that cannot run, without a cell. It is reported to the sampler."""
        outcome = Outcome(job.attempt, RAISED, raised=describe(refused.error))
        evidence = Evidence(outcome=outcome, directions=len(self.study.directions))
        self.conclude(job, evidence, classify(evidence))
        self._recheck_now = True  # an idle worker is still without a trial
        if not self.progress.ever_succeeded:
            self.admission.halt_if_all_refused(refused)

    def launch(self, job: Job, cell: Cell) -> None:
        job.launch(cell)
        if not self.others.count_launch(job):
            self.pool.put_back(cell)
            return
        task = self.requests.task_for(job, self.folder.checkpoints_of(job.number))
        attempt = Attempt(job, cell)
        self.trials.attempts[cell.number] = attempt
        self.processes.send_task(cell, task, job.folder.log)
        kept = job.provision.reserve if job.provision is not None else None
        self.emit(events.TrialStarted(job.number, job.attempt, cell.number, attempt.started, kept))

    # Events of processes, messages of cells.

    def handle_event(self, event: ProcessEvent) -> None:
        match event:
            case MessageReceived(cell, message):
                if (attempt := self.trials.attempts.get(cell.number)) is not None:
                    self.handle_message(attempt, message)
            case CellReady(cell):
                self.begin_timeout()
                self.pool.cell_ready(cell)
            case CellDisconnected(cell):
                if (attempt := self.trials.attempts.get(cell.number)) is not None:
                    self.deadlines.kill_disconnected(attempt)
            case CellExited(cell, exit):
                self.handle_cell_exit(cell, exit)
            case ForkServerDied(cells):
                for cell in cells:
                    self.handle_cell_exit(cell, exit_of_killed(cell))
                self.pool.restart(tail_of(self.folder.fork_server_log))
            case HostReady(host, why_not_fork):
                self.pool.host_ready(host, why_not_fork)
            case HostLost(host, cells, why):
                self.handle_host_loss(host, cells, why)
            case ObjectiveLoaded(why_not_fork):
                self.pool.objective_loaded(why_not_fork)
            case LoadFailed(error, traceback):
                self.pool.objective_broken(error, traceback)

    def handle_message(self, attempt: Attempt, message: Message) -> None:
        match self.messages.handle(attempt, message):
            case Ended(outcome, unclean):
                del self.trials.attempts[attempt.cell.number]
                self.handle_outcome(attempt, outcome, unclean)
            case Unusable(error):
                self.reject(attempt, error)
            case FinishedElsewhere():
                number, why = attempt.job.number, "was finished by another program"
                self.emit(events.Notice(f"Trial {number} {why}; its attempt ends here."))
                self.kill(attempt, f"its trial {why}")
                self.emit(events.TrialPaused(number))
                self.progress.recount()

    def reject(self, attempt: Attempt, error: Exception) -> None:
        """Fail the trial of a cell whose message cannot be understood or stored."""
        self.kill(attempt, "its message could not be stored")
        outcome = Outcome(attempt.job.attempt, RAISED, raised=describe(error))
        evidence = attempt.evidence(outcome, len(self.study.directions))
        self.end_attempt(attempt, evidence, classify(evidence))

    def kill(self, attempt: Attempt, why: str, *, once: bool = False) -> None:
        del self.trials.attempts[attempt.cell.number]
        self.pool.kill(attempt.cell, why, once=once)

    def handle_outcome(self, attempt: Attempt, outcome: Outcome, unclean: str | None) -> None:
        job = attempt.job
        if outcome.state == INTERRUPTED and attempt.pausing:
            self.pool.release(attempt.cell, unclean is None, unclean)
            job.record_pause(time.monotonic() - attempt.started)
            self.trials.paused.add(job)
            self.end_attempt(attempt, Evidence(), fault=None)
            return
        if outcome.state == INTERRUPTED:
            self.pool.dismiss(attempt.cell)
            self.keep_for_next_run(job)
            return
        evidence = attempt.evidence(outcome, len(self.study.directions))
        fault = classify(evidence)
        healthy = (fault is None or fault.harmless) and unclean is None
        if unclean is not None:
            job.record_unclean(unclean)
        self.pool.release(attempt.cell, healthy, unclean)
        self.end_attempt(attempt, evidence, fault)

    def handle_host_loss(self, host: str, cells: Sequence[Cell], why: str) -> None:
        node = machine_of(host)
        self.emit(events.Notice(f"The worker on {node} was lost: {why}."))
        self.pool.host_lost(host, cells)
        for cell in cells:
            self.handle_cell_exit(cell, exit_of_killed(cell), lost_node=node)

    def handle_cell_exit(self, cell: Cell, exit: Exited, lost_node: str | None = None) -> None:
        attempt = self.trials.attempts.pop(cell.number, None)
        self.pool.cell_exited(
            cell, exit, tail_of(self.folder.fork_server_log), ran=attempt is not None
        )
        if attempt is None:
            return
        outcome = attempt.job.outcome()
        if outcome is None and attempt.killed_for is KilledFor.STOP:
            self.keep_for_next_run(attempt.job)
            return
        evidence = attempt.evidence(outcome, len(self.study.directions), exit, lost_node)
        self.end_attempt(attempt, evidence, classify(evidence))

    def keep_for_next_run(self, job: Job) -> None:
        """Keep a trial claimed, whose attempt has ended because this run is stopping."""
        job.record_stop()
        self.trials.waiting.append(job)
        self.emit(events.TrialPaused(job.number))

    # Ends of attempts.

    def end_attempt(self, attempt: Attempt, evidence: Evidence, fault: Fault | None) -> None:
        if not self.gpus.holds(attempt, evidence, fault):
            self.conclude(attempt.job, evidence, fault)

    def prune_paused(self) -> None:
        """End paused trials that no run will continue."""
        for job in self.trials.to_prune():
            self.attempt_end.prune_paused(job)
            self.trials.paused.drop({job.trial._trial_id})

    def settle(self, job: Job, evidence: Evidence, gpu_lost: str | None) -> None:
        evidence = replace(evidence, gpu_lost=gpu_lost)
        with contextlib.suppress(LeaseLost):  # another run has it already
            self.conclude(job, evidence, classify(evidence))

    def settle_gpus(self) -> None:
        """Decide on attempts whose GPU was probed, and end those on a GPU that is lost."""
        for gpu in self.gpus.checked(stopping=self.stop_reason is not None):
            here = [a for a in self.trials.attempts.values() if a.cell.device == gpu.device]
            for attempt in here if gpu.lost is not None else ():
                self.kill(attempt, "its GPU was taken out of service", once=True)
                outcome = attempt.job.outcome()
                evidence = attempt.evidence(outcome, len(self.study.directions))
                self.settle(attempt.job, evidence, gpu.lost if outcome is None else None)
            for held in gpu.held:
                self.settle(held.job, held.evidence, gpu.lost)
            if gpu.lost is not None:
                self.others.note(self.gpus.lost_text())
        self.gpus.require_one()

    def resume(self, job: Job) -> None:
        """Conclude a trial of an earlier run or another one, or queue it for another attempt."""
        outcome = job.outcome()
        if (error := self.requests.store_missed_reports(job)) is not None:
            text = f"Trial {job.number}: its reports cannot be stored ({in_short(error)})."
            self.emit(events.Notice(text))
        evidence = Evidence(outcome=outcome, directions=len(self.study.directions))
        fault = classify(evidence) if outcome is not None else job.last_fault
        if outcome is None and fault is None and job.paused and self.trials.paused.enabled:
            self.trials.paused.add(job)
        elif outcome is None and fault is None:
            self.trials.waiting.append(job)
        else:
            self.conclude(job, evidence, fault, earlier_run=True)
        job.provision = None  # planned for the device of that run

    def conclude(
        self, job: Job, evidence: Evidence, fault: Fault | None, *, earlier_run: bool = False
    ) -> None:
        """Finish the trial, or queue it for another attempt. `fault`: of `classify(evidence)`."""
        try:
            if self.attempt_end.conclude(job, evidence, fault, earlier_run=earlier_run):
                self.trials.waiting.append(job)
        except LeaseLost:
            self.others.give_up(job)
            raise

    def next_deadline(self) -> float | None:
        """Return the seconds until the next deadline; None: there is none."""
        if self._recheck_now:
            self._recheck_now = False
            return 0.0
        due = [self.pool.next_deadline(), *self.deadlines.due(self.trials.attempts.values())]
        if self.admission.waiting_for_memory and not self.stop_reason:
            due.append(time.monotonic() + RECHECK_INTERVAL)
        idle = len(self.trials.attempts) < self.workers and not self.stop_reason
        due.append(self.others.next_deadline(idle=idle))
        if not self.stop_reason:
            due += [self.pause_deadline(), *self.trials.retries_due(after=self._looked_at)]
        left = min(due) - time.monotonic()
        return None if left == math.inf else min(max(0.0, left), _LONGEST_WAIT)
