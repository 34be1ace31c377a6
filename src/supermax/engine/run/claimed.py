"""Trials that a run has claimed and not finished, and the decisions which of them to launch.

    waiting ──▶ attempts, in cells ──▶ paused, at a rung ──▶ waiting
       ▲                │
       └──── retry ◀────┘

The coordinator launches trials and writes their ends; nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable

from optuna.study import Study

from supermax.engine.health.gpu_watch import GpuWatch
from supermax.engine.jobs.job import Attempt, Job
from supermax.engine.promotion.paused import PausedTrials
from supermax.engine.run.other_runs import OtherRuns
from supermax.engine.run.progress import StudyProgress


class ClaimedTrials:
    """Claimed trials by state, and how many more to launch."""

    def __init__(
        self,
        study: Study,
        paused: PausedTrials,
        progress: StudyProgress,
        gpus: GpuWatch,
        others: OtherRuns,
    ) -> None:
        self._study, self._progress, self._gpus, self._others = study, progress, gpus, others
        self.waiting: list[Job] = []
        """Those without a cell, to be launched."""
        self.attempts: dict[int, Attempt] = {}
        """Those with a cell, by its number."""
        self.paused = paused
        self.stopping = False
        """True: the run launches nothing any more."""

    @property
    def held(self) -> int:
        """Number of trials whose GPU is probed, or whose files are being copied."""
        return self._gpus.held + self._others.arriving

    def any_left(self) -> bool:
        """Return whether the run still has trials to launch."""
        if self.stopping:
            return False
        room = self._progress.left(len(self.attempts) + self.held) != 0
        due = bool(self.waiting) or self.paused.has_next(may_fill=self._may_fill())
        return (due and room) or bool(self.held) or self.wants_new()

    def wants_new(self) -> bool:
        """Return whether to ask the study for a new trial."""
        if self._study._stop_flag or self.stopping or not self._others.may_start_new():
            return False
        claimed = len(self.attempts) + len(self.waiting) + len(self.paused) + self.held
        return self._progress.has_room(claimed)

    def launches_left(self, workers: int) -> int:
        """Return the number of launches to keep cells ready for."""
        if not self.any_left():
            return 0
        if self._study._stop_flag:
            return len(self.waiting) + len(self.paused)
        left = self._progress.left(len(self.attempts))
        return workers if left is None else left

    def next_due(self, now: float, must_wait: Callable[[Job], bool]) -> Job | None:
        """Return the trial of `waiting` to launch now, if any. It may have been paused before."""
        due = [job for job in self.waiting if job.not_before <= now]
        due = [job for job in due if not must_wait(job)]
        if not due and (promoted := self.paused.take_next(may_fill=self._may_fill())):
            self.waiting.append(promoted)
            return promoted
        return due[0] if due else None

    def retries_due(self, after: float) -> list[float]:
        """Return the moments after `after` at which pauses before a retry end."""
        return [job.not_before for job in self.waiting if job.not_before > after]

    def drop(self, trial_ids: set[int]) -> list[Job]:
        """Forget those of these trials that have no cell; return their jobs."""
        waiting = self.waiting
        self.waiting = [job for job in waiting if job.trial._trial_id not in trial_ids]
        return [
            *self._gpus.drop(trial_ids),
            *self.paused.drop(trial_ids),
            *self._others.drop(trial_ids),
            *(job for job in waiting if job.trial._trial_id in trial_ids),
        ]

    def pauses(self, job: Job) -> bool:
        """Return whether a trial pauses after its last report."""
        return self.paused.pauses(job, may_fill=self._may_fill())

    def to_prune(self) -> list[Job]:
        """Return the paused trials to end, as many as the study lacks and the worst ones, once
        nothing is left to launch."""
        idle = not (self.attempts or self.stopping or self.any_left())
        lacking = self._progress.left(0) if idle and self._others.may_start_new() else 0
        return self.paused.worst_first()[:lacking]

    def _may_fill(self) -> bool:
        """Return whether a free worker may continue any paused trial: it has nothing else to do,
        and trials run that are to be waited for."""
        awaited = any(not attempt.job.filler for attempt in self.attempts.values())
        return awaited and not self.wants_new()
