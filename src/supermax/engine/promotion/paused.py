"""Trials of a run that are paused at a rung: claimed, and without a cell."""

from __future__ import annotations

from collections.abc import Callable

from optuna.study import Study

from supermax.engine import events
from supermax.engine.jobs.job import Job
from supermax.engine.promotion.front_ladder import ladder_of
from supermax.engine.promotion.ladder import Ladder
from supermax.engine.promotion.paused_space import PausedSpace
from supermax.engine.storage.history import TrialHistory


class PausedTrials:
    """Paused trials of a run, and the decision which of them continues."""

    def __init__(
        self,
        study: Study,
        history: Callable[[], TrialHistory],
        emit: events.Listener,
        space: PausedSpace | None = None,
    ) -> None:
        """`space`: disk space of their checkpoints; None: without a limit."""
        self._ladder = ladder_of(study)
        self._history, self._emit, self._space = history, emit, space
        self._seen = 0  # finished trials that the ladder has
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: object) -> bool:
        return number in self._jobs

    @property
    def enabled(self) -> bool:
        """Return whether trials of this study pause."""
        return self._ladder is not None

    def pauses(self, job: Job, *, may_fill: bool) -> bool:
        """Return whether a trial pauses after its last report. `may_fill`: workers would have
        nothing else to do."""
        ladder = self._updated()
        reports = ladder.read(job.trial._cached_frozen_trial)
        if ladder.pauses(job.number, reports):
            return True
        if not job.filler or ladder.is_last(len(reports)):
            return False
        return not may_fill or ladder.promotable() is not None

    def add(self, job: Job) -> None:
        """Keep a trial that has paused."""
        assert self._ladder is not None
        self._ladder.add(job.number, self._ladder.read(job.trial._cached_frozen_trial))
        self._ladder.pause(job.number)
        self._jobs[job.number] = job
        self._emit(events.TrialPaused(job.number, at_rung=True))
        if self._space is not None:
            self._space.add(job)
            self._space.make_room(self.worst_first())

    def has_next(self, *, may_fill: bool) -> bool:
        """Return whether a paused trial is to be continued now: one among the best of its rung,
        or, with `may_fill`, any."""
        return bool(self._jobs) and (may_fill or self._updated().promotable() is not None)

    def take_next(self, *, may_fill: bool) -> Job | None:
        """Return the paused trial to continue now, if any."""
        if not self._jobs:
            return None
        ladder = self._updated()
        promotable = ladder.promotable()
        number = ladder.best() if promotable is None and may_fill else promotable
        if (job := self._take(number)) is not None:
            job.filler = promotable is None
        return job

    def worst_first(self) -> list[Job]:
        """Return the paused trials: those at lower rungs first, and at a rung the worse ones."""
        return [self._jobs[n] for n in self._ladder.worst_first()] if self._ladder else []

    def drop(self, trial_ids: set[int]) -> list[Job]:
        """Forget those of these trials that are paused; return their jobs."""
        numbers = [n for n, job in self._jobs.items() if job.trial._trial_id in trial_ids]
        return [job for n in sorted(numbers) if (job := self._take(n)) is not None]

    def _take(self, number: int | None) -> Job | None:
        if number is None or self._ladder is None:
            return None
        self._ladder.resume(number)
        if self._space is not None:
            self._space.discard(number)
        return self._jobs.pop(number)

    def _updated(self) -> Ladder:
        """Return the ladder with the trials that have finished by now, those of other runs
        included. A paused trial that another program has finished is dropped."""
        assert self._ladder is not None
        finished = self._history().finished
        for trial in finished[self._seen :]:
            if trial.number in self._jobs:
                self._take(trial.number)
                self._emit(events.TrialPaused(trial.number))
        self._ladder.update(finished[self._seen :])
        self._seen = len(finished)
        return self._ladder
