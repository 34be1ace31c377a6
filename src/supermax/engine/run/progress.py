"""Finished trials of a study, and how many more a run shall launch."""

from __future__ import annotations

import time

from optuna.study import Study

from supermax.engine.run.tell import succeeded
from supermax.engine.storage.patient import PatientStorage

_RECOUNT = 5.0  # seconds; other programs may finish trials of the same study


class StudyProgress:
    """Number of finished trials of a study, and the number that a run shall reach."""

    def __init__(self, study: Study, storage: PatientStorage, target: int | None) -> None:
        """`target`: finished trials the study shall hold in all; None: no limit."""
        self._study, self._storage = study, storage
        self.target = target
        self.finished = 0
        self.ever_succeeded = False
        """A trial of the study has completed, or was pruned without a fault."""
        self.elsewhere = 0
        """Trials that other runs on the same study have leased."""
        self._counted = 0.0

    def recount(self) -> None:
        self._storage.check_file()
        trials = self._storage.get_all_trials(self._study._study_id, deepcopy=False)
        self.finished = sum(trial.state.is_finished() for trial in trials)
        self.ever_succeeded |= any(map(succeeded, trials))
        if (leases := self._storage.leases) is not None:
            self.elsewhere = self._storage.call(leases.count_elsewhere)
        self._counted = time.monotonic()

    def recount_if_due(self) -> None:
        if time.monotonic() - self._counted > _RECOUNT:
            self.recount()

    def recount_soon(self) -> None:
        """Count anew before the next launch: trials may have been added."""
        self._counted = 0.0

    def add(self, *, success: bool) -> None:
        self.finished += 1
        self.ever_succeeded |= success

    def has_room(self, claimed: int) -> bool:
        """Return whether another trial may be launched beside `claimed` unfinished ones of this
        run."""
        return self.target is None or self.finished + claimed + self.elsewhere < self.target

    def others_may_finish(self) -> bool:
        """Return whether the study lacks trials that other runs have leased."""
        return self.elsewhere > 0 and self.target is not None and self.finished < self.target
