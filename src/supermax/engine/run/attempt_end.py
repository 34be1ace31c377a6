"""The end of an attempt: decide on its fault, and finish the trial through `tell`.

Evidence, Fault ──policy.decide()──▶ Retry, Replan: another attempt
                               └───▶ Prune, Fail, or no fault ──tell()──▶ study
"""

from __future__ import annotations

import copy
from collections import Counter

from optuna.study import Study
from optuna.trial import TrialState

from supermax._util.attributes import plain_params
from supermax.engine import events
from supermax.engine.health.machine_watch import MachineWatch
from supermax.engine.jobs import policy
from supermax.engine.jobs.job import Job
from supermax.engine.jobs.tell import halt_message, tell
from supermax.engine.processes.pool import Pool
from supermax.engine.run.admission import Admission
from supermax.engine.run.options import RunOptions
from supermax.engine.run.progress import StudyProgress
from supermax.engine.sharing.shared_run import SharedRun
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.trial.faults import Evidence, Fault
from supermax.engine.trial.outcome import PRUNED
from supermax.errors import RunHalted


class AttemptEnd:
    """Acts on the end of each attempt of a run, and counts faults, retries and finished trials."""

    def __init__(
        self,
        study: Study,
        storage: PatientStorage,
        progress: StudyProgress,
        pool: Pool,
        admission: Admission,
        options: RunOptions,
        emit: events.Listener,
        shared: SharedRun | None = None,
    ) -> None:
        self._study, self._storage = study, storage
        self._progress, self._pool, self._admission = progress, pool, admission
        self._options, self._emit, self._shared = options, emit, shared
        self._machines = MachineWatch(pool, emit)
        self.faults: Counter[str] = Counter()
        self.retries = 0
        self.told = 0
        """Trials whose end this run has written to the study."""
        self._failures: list[str] = []
        """Signatures of the faults that trials failed with in this run."""

    def conclude(
        self, job: Job, evidence: Evidence, fault: Fault | None, *, earlier_run: bool = False
    ) -> bool:
        """Act on the end of an attempt. Return True if the trial is to be attempted again.

        `fault`: the evidence as classified; None: the attempt completed, was pruned or paused.
        `earlier_run`: the attempt was one of an earlier run, or of another one. Its fault is not
        counted here.
        Raise `RunHalted` if the first trials have all failed alike."""
        if fault is None:
            if self._shared is not None and not earlier_run:
                self._shared.succeeded_here()
            self._machines.ended(job, succeeded=True)
            if evidence.outcome is not None:
                pruned = evidence.outcome.state == PRUNED
                self._finish(job, TrialState.PRUNED if pruned else TrialState.COMPLETE, evidence)
            return False
        decision = self._decide(job, fault)
        fault = policy.apply_decision(fault, decision)
        self._record(job, fault, decision, evidence, earlier_run)
        if not isinstance(decision, policy.Retry | policy.Replan):
            self._machines.ended(job, succeeded=False)
        match decision:
            case policy.Retry() | policy.Replan():
                self.retries += 1
                job.prepare_retry(decision, evidence.lasted)
                return True
            case policy.Offer():
                assert self._shared is not None
                self._shared.offer(job)
                self._emit(events.TrialPaused(job.number))
                self._progress.recount_soon()
            case policy.Prune(name, value):
                self._finish(job, TrialState.PRUNED, evidence, (name, value))
            case policy.Fail():
                self._finish(job, TrialState.FAIL, evidence)
                if not earlier_run:  # that run's objective may have been another
                    self._halt_if_all_fail(fault, evidence)
        return False

    def prune_paused(self, job: Job) -> None:
        """Finish a paused trial that is not continued."""
        self._finish(job, TrialState.PRUNED, Evidence())

    def forget(self, job: Job) -> None:
        """Note that another run has taken the trial over: no machine waits for its end."""
        self._machines.ended(job, succeeded=False)

    def _decide(self, job: Job, fault: Fault) -> policy.Decision:
        planned = self._admission.plans and job.provision is not None and bool(job.provision.plan)
        before = job.faults[job.elsewhere :]
        decision = policy.decide(fault, before, self._options.retries, planned)
        if isinstance(decision, policy.Replan):
            return self._admission.replan(job)
        if isinstance(decision, policy.Fail | policy.Retry):
            self._machines.failed(job, fault)
        fails = isinstance(decision, policy.Fail) and policy.may_be_of_machine(fault)
        if fails and self._machines.may_try_elsewhere(job):
            return policy.Retry(0.0, elsewhere=True)
        if fails and self._shared is not None and self._shared.may_offer(job):
            return policy.Offer()
        return decision

    def _record(
        self,
        job: Job,
        fault: Fault,
        decision: policy.Decision,
        evidence: Evidence,
        earlier_run: bool,
    ) -> None:
        """Write the fault to the trial's ledger, and emit it."""
        text = job.record_fault(fault, decision, evidence)
        if earlier_run:
            which = "another" if job.of_other_run else "an earlier"
            text = f"{text} (it had ended so in {which} run)"
        else:
            self.faults[fault.name] += 1
        self._emit(
            events.FaultSeen(
                job.number,
                job.attempt,
                fault.name,
                str(fault.culprit),
                fault.message,
                text,
                retried=isinstance(decision, policy.Retry | policy.Replan),
                counted=not earlier_run,
            )
        )

    def _halt_if_all_fail(self, fault: Fault, evidence: Evidence) -> None:
        self._failures.append(fault.signature)
        if evidence.outcome and policy.should_halt(self._failures, self._progress.ever_succeeded):
            raised = evidence.outcome.raised
            raise RunHalted(halt_message(fault, raised, len(self._failures)))

    def _finish(
        self,
        job: Job,
        state: TrialState,
        evidence: Evidence,
        constraint: tuple[str, float] | None = None,
    ) -> None:
        told = tell(self._study, self._storage, job, state, evidence, constraint)
        if told.sampler_error is not None:
            kind = type(told.sampler_error).__name__
            self._emit(events.Notice(f"The sampler raised {kind}: {told.sampler_error}"))
        self.told += 1
        self._pool.trial_finished()
        self._progress.add(success=constraint is None and told.state is not TrialState.FAIL)
        self._emit(
            events.TrialFinished(
                number=job.number,
                state=told.state.name,
                values=tuple(told.values) if told.values is not None else None,
                params=dict(plain_params(job.trial._cached_frozen_trial)),
                attempts=job.attempt,
                seconds=job.spent + evidence.lasted,
                finished=self._progress.finished,
                copied=job.result_of is not None,
            )
        )
        if self._options.callbacks:
            frozen = self._storage.get_trial(job.trial._trial_id)
            for callback in self._options.callbacks:
                callback(self._study, copy.deepcopy(frozen))
            self._progress.recount_soon()  # a callback may have added trials
