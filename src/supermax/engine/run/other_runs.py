"""Trials that move between the runs on a study: lost to other runs, or taken over from them.

    OtherRuns.renew() ─────▶ trials that other runs have taken: their attempts end here
    OtherRuns.take_over() ─▶ trials of runs that are gone: jobs to continue here

A study that is not on a database server has no other runs: then these methods find nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from optuna.study import Study

from supermax.engine import events
from supermax.engine.jobs.job import Job
from supermax.engine.run.admission import RECHECK_INTERVAL
from supermax.engine.run.progress import StudyProgress
from supermax.engine.sharing.shared_run import SharedRun
from supermax.engine.sharing.takeover import Takeover, read_source
from supermax.engine.storage.leases import Expired, LeaseLost
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder


class StudyFinished(Exception):
    """Error: the run has nothing to do any more, and cannot write its run folder."""


class OtherRuns:
    """Other runs on the study, as the loop of the coordinator deals with them. `shared`: None if
    there can be none."""

    def __init__(
        self,
        shared: SharedRun | None,
        study: Study,
        storage: PatientStorage,
        folder: StudyFolder,
        progress: StudyProgress,
        emit: events.Listener,
        wake: Callable[[], None],
    ) -> None:
        self._shared, self._study, self._storage = shared, study, storage
        self._folder, self._progress = folder, progress
        self._emit, self._wake = emit, wake
        self._expired: list[Expired] = []  # found, and not tried to take yet
        self._takeovers: list[Takeover] = []  # the first one's files are being copied
        if shared is not None:
            storage.patience.check_need = self._end_if_finished

    def renew(self) -> set[int]:
        """Renew the leases of this run if it is time; return the ids of the trials it has lost."""
        return self._shared.renew_if_due() if self._shared is not None else set()

    def judge(self) -> None:
        """Raise Quarantined if trials that failed here have succeeded in other runs."""
        if self._shared is not None:
            self._shared.judge()

    def next_deadline(self, *, idle: bool) -> float:
        """Return the moment at which the loop must come by again. `idle`: this run has free
        workers, for trials of runs that are gone."""
        if self._shared is None:
            return math.inf
        due = self._shared.next_deadline()
        return min(due, time.monotonic() + RECHECK_INTERVAL) if idle else due

    def allowed_workers(self, workers: int) -> int:
        return self._shared.allowed_workers(workers) if self._shared is not None else workers

    def may_start_new(self) -> bool:
        """Return whether this machine is trusted with new trials."""
        return self._shared is None or self._shared.may_start_new()

    def are_awaited(self) -> bool:
        """Return whether trials of other runs are missing: should those runs die, this one takes
        their trials over."""
        if self._progress.reached:
            return False
        leased = self._progress.elsewhere > 0 and self._progress.target is not None
        return leased or not self.may_start_new()

    def _end_if_finished(self) -> None:
        """Raise StudyFinished if the study has its trials: other runs took over those of this one,
        which does not renew its leases while it waits for its run folder."""
        self._progress.recount_if_due()
        if self._progress.reached:
            text = "The study is finished: this run ends without waiting for its run folder."
            self._emit(events.Notice(text))
            raise StudyFinished

    def note(self, text: str) -> None:
        """Show other runs what is unusual about this one."""
        if self._shared is not None:
            self._shared.note(text)

    def give_up(self, job: Job) -> None:
        """Note that another run has taken over a trial of this one."""
        if not job.paused:  # its ledger says so, also to the run that has it now
            job.record_stop()
        self._storage.forget(job.trial._trial_id)
        self._emit(events.Notice(lost_notice(job.number)))
        self._emit(events.TrialPaused(job.number))

    @property
    def arriving(self) -> int:
        """Number of trials that this run has taken over and cannot launch yet."""
        return sum(not one.dropped for one in self._takeovers)

    def split_arriving(self, leftovers: list[Job]) -> list[Job]:
        """Return the trials of an earlier process of this run that can be continued now. Those
        that it took over, and whose files have not arrived, follow."""
        for job in leftovers if self._shared is not None else ():
            if (lost := read_source(job.folder)) is not None:
                same = replace(lost, trial_id=job.trial._trial_id)
                self._takeovers.append(Takeover(same, self._study, self._folder, self._wake))
        numbers = {one.job.number for one in self._takeovers}
        return [job for job in leftovers if job.number not in numbers]

    def take_over(self, free: int) -> Iterator[Job]:
        """Yield trials of runs that are gone, whose files have arrived. With `free` workers, take
        another one: one at a time, so that other runs get their share."""
        if self._shared is None:
            return
        if self._takeovers and self._takeovers[0].done:
            arrived = self._takeovers.pop(0)
            if not arrived.dropped:
                self._emit(events.Notice(arrived.finish()))
                yield arrived.job
                self._progress.recount_soon()
        if not self._takeovers and free > 0:
            self._take_next(self._shared)
        if self._takeovers:
            self._takeovers[0].start()

    def _take_next(self, shared: SharedRun) -> None:
        self._expired = self._expired or shared.expired()
        while self._expired:
            if shared.take_over(lost := self._expired.pop(0)):
                self._progress.recount()  # Optuna's cache must know a trial before a write to it
                self._takeovers = [Takeover(lost, self._study, self._folder, self._wake)]
                return

    def drop(self, trial_ids: set[int]) -> list[Job]:
        """Forget trials that have not arrived yet; return their jobs."""
        lost = [one for one in self._takeovers if one.job.trial._trial_id in trial_ids]
        lost = [one for one in lost if not one.dropped]
        for one in lost:
            one.dropped = True
        return [one.job for one in lost]

    def count_launch(self, job: Job) -> bool:
        """Note the number of a trial's attempt, for a run that cannot read this one's folder;
        return False if another run has taken the trial over."""
        try:
            if self._shared is not None and job.attempt > 1:
                self._shared.count_attempt(job)
        except LeaseLost:
            self.give_up(job)
            self._progress.recount_soon()
            return False
        return True


def lost_notice(number: int) -> str:
    return (
        f"Trial {number} was taken over by another run, because this one did not renew its lease "
        f"in time; its attempt here has ended."
    )
