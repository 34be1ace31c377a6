"""Finished trials of a study, and how many more a run shall launch."""

from __future__ import annotations

import time
from collections.abc import Sequence

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from supermax.engine import events
from supermax.engine.jobs.tell import succeeded
from supermax.engine.ranking import best_of
from supermax.engine.storage.patient import PatientStorage

_RECOUNT = 5.0  # seconds; other programs may finish trials of the same study


class StudyProgress:
    """Number of finished trials of a study, and the number that a run shall reach."""

    def __init__(
        self,
        storage: PatientStorage,
        target: int | None,
        directions: Sequence[StudyDirection],
        emit: events.Listener,
    ) -> None:
        """`target`: finished trials the study shall hold in all; None: no limit."""
        self._storage, self._directions, self._emit = storage, directions, emit
        self.target = target
        self.finished = 0
        self.ever_succeeded = False
        """A trial of the study has completed, or was pruned without a fault."""
        self.elsewhere = 0
        """Trials that other runs on the same study have leased."""
        self._other_workers: int | None = None
        """Workers of these runs, as announced last; None: the study is in a file."""
        self._counted = 0.0
        self._due = False
        self._seen = 0  # finished trials that were looked at
        self._best: FrozenTrial | None = None  # of these

    def recount(self, *, now: bool = True) -> None:
        """Count the finished trials. `now`: those of other programs up to this moment."""
        self._storage.check_file()
        trials = self._storage.history(now=now).finished
        new = trials[self._seen :]
        self.ever_succeeded = self.ever_succeeded or any(map(succeeded, new))
        self._best = best_of([*([self._best] if self._best else []), *new], self._directions)
        self._seen = len(trials)
        changed = self._counted > 0 and len(trials) != self.finished
        self.finished = len(trials)
        workers = self._other_workers
        if (leases := self._storage.leases) is not None:
            found = self._storage.call(leases.count_elsewhere)
            self.elsewhere, workers = found.trials, found.workers
        if changed or workers != self._other_workers:
            self._other_workers = workers
            best = (self._best.number, self._best.values[0]) if self._best else None
            self._emit(events.StudyChanged(self.finished, best, workers))
        self._counted = time.monotonic()
        self._due = False

    def recount_if_due(self) -> bool:
        """Count anew if it is time; return whether that included trials of other programs."""
        if time.monotonic() - self._counted > _RECOUNT:
            self.recount()
            return True
        if self._due:
            self.recount(now=False)
        return False

    def recount_soon(self) -> None:
        """Count anew before the next launch: trials may have been added."""
        self._due = True

    def add(self, *, success: bool) -> None:
        self.finished += 1
        self.ever_succeeded |= success

    def has_room(self, claimed: int) -> bool:
        """Return whether the run may start a new trial beside its `claimed` unfinished ones."""
        return self.target is None or self.finished + claimed + self.elsewhere < self.target

    def left(self, running: int) -> int | None:
        """Return how many claimed trials to launch beside `running` ones; None: no limit. Those of
        other runs do not count: each run would wait for the others if they were too many."""
        return None if self.target is None else max(0, self.target - self.finished - running)

    @property
    def reached(self) -> bool:
        return self.target is not None and self.finished >= self.target
