"""Trials that move between the runs on a study: lost to other runs, or taken over from them.

    OtherRuns.renew() ─────▶ trials that other runs have taken: their attempts end here
    OtherRuns.take_over() ─▶ trials of runs that are gone: jobs to continue here

A study that is not on a database server has no other runs: then these methods find nothing.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.study import Study

from supermax.engine import events
from supermax.engine.run.admission import RECHECK_INTERVAL
from supermax.engine.run.job import Job
from supermax.engine.run.progress import StudyProgress
from supermax.engine.run.sharing import SharedRun
from supermax.engine.storage.leases import Expired
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder


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
    ) -> None:
        self._shared, self._study, self._storage = shared, study, storage
        self._folder, self._progress, self._emit = folder, progress, emit

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
        return not self.may_start_new() or self._progress.others_may_finish()

    def note(self, text: str) -> None:
        """Show other runs what is unusual about this one."""
        if self._shared is not None:
            self._shared.note(text)

    def give_up(self, job: Job) -> None:
        """Note that another run has taken over a trial of this one."""
        job.record_stop()
        self._storage.forget(job.trial._trial_id)
        self._emit(events.Notice(lost_notice(job.number)))
        self._emit(events.TrialPaused(job.number))

    def take_over(self, free: int) -> Iterator[Job]:
        """Yield at most `free` trials of runs that are gone: from now on they are this run's."""
        if self._shared is None or free <= 0:
            return
        for lost in self._shared.expired():
            if free > 0 and self._shared.take_over(lost):
                self._progress.recount()  # Optuna's cache must know a trial before a write to it
                job, notice = continued(lost, self._study, self._folder)
                self._emit(events.Notice(notice))
                yield job
                self._progress.recount_soon()
                free -= 1


def continued(lost: Expired, study: Study, folder: StudyFolder) -> tuple[Job, str]:
    """Return the job of a trial that this run has taken, and a notice about it."""
    trial = optuna.trial.Trial(study, lost.trial_id)
    job = Job(trial, folder.trial(trial.number))
    own = Path(lost.run_dir) == folder.path  # offered, and taken by no other run
    adopted = own or adopt_folder(lost, job.number, job.folder.path)
    job.reload()
    job.taken_over(lost.takeovers + (not lost.offered), adopted=adopted)
    return job, takeover_notice(lost, job.number, adopted)


def adopt_folder(lost: Expired, number: int, target: Path) -> bool:
    """Copy the files of a trial that is taken over, if the folder of its run can be reached;
    return whether that is so."""
    found = StudyFolder(Path(lost.run_dir))
    if found.claim() != lost.run:
        return False
    try:
        shutil.copytree(found.trial(number).path, target, dirs_exist_ok=True)
    except OSError:  # it is gone, or cannot be read by this user, or this disk is full
        return False
    return True


def lost_notice(number: int) -> str:
    return (
        f"Trial {number} was taken over by another run, because this one did not renew its lease "
        f"in time; its attempt here has ended."
    )


def takeover_notice(lost: Expired, number: int, adopted: bool) -> str:
    if lost.offered:
        return f"Trial {number}, which failed in the run on {lost.host}, is tried in this one."
    how = (
        "where it was" if adopted else "from its checkpoint if that is shared, else from the start"
    )
    return (
        f"Trial {number} is taken over from the run on {lost.host}, whose lease has expired. It "
        f"continues {how}."
    )
