"""Trials of the study of a run in memory: a read fetches the changed ones only.

Optuna's storages go through all trials at every read, at a cost that grows with the study. Here a
read looks at new trials and at those that were unfinished before; everything else is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from optuna.storages import BaseStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState

_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)


class TrialHistory:
    """Trials of one study as of the last read. Not thread-safe: the coordinator owns it."""

    def __init__(self, study_id: int) -> None:
        self.study_id = study_id
        self.trials: list[FrozenTrial] = []
        """All trials, by number."""
        self.finished: list[FrozenTrial] = []
        """Finished trials in the order in which they were seen. It only grows: a consumer that
        remembers its length finds the new ones at the end."""
        self._unfinished: set[int] = set()  # numbers

    def update(self, found: Mapping[int, FrozenTrial] | Sequence[FrozenTrial]) -> None:
        """Take over what a read has found: all trials of the study, by number."""
        for number in sorted(self._unfinished):
            self._replace(found[number])
        for number in range(len(self.trials), len(found)):
            self.trials.append(found[number])
            self._unfinished.add(number)
            self._replace(found[number])

    def _replace(self, trial: FrozenTrial) -> None:
        self.trials[trial.number] = trial
        if trial.state.is_finished():
            self._unfinished.discard(trial.number)
            self.finished.append(trial)

    def add(self, trial: FrozenTrial) -> bool:
        """Add a trial that this run has created; return False if trials of others, which are not
        known yet, come before it."""
        if trial.number != len(self.trials):
            return False
        self.trials.append(trial)
        self._unfinished.add(trial.number)
        return True

    def prefer(self, trials: Iterable[FrozenTrial]) -> None:
        """Replace RUNNING trials by this run's own copies, which it updates as it writes."""
        for trial in trials:
            if trial.number in self._unfinished:
                self.trials[trial.number] = trial

    def unfinished(self) -> list[FrozenTrial]:
        """Return the RUNNING and WAITING trials, by number."""
        return [self.trials[number] for number in sorted(self._unfinished)]

    def select(self, states: Container[TrialState] | None) -> list[FrozenTrial]:
        """Return the trials in one of the states, by number; None: all of them."""
        if states is None:
            return list(self.trials)
        if not any(state in states for state in TrialState if state not in _UNFINISHED):
            return [trial for trial in self.unfinished() if trial.state in states]
        return [trial for trial in self.trials if trial.state in states]


def reader(
    storage: BaseStorage, study_id: int
) -> Callable[[], Mapping[int, FrozenTrial] | Sequence[FrozenTrial]]:
    """Return the function that reads the trials of a study, for `TrialHistory.update`."""
    if isinstance(storage, _CachedStorage):
        return partial(_from_cache, storage, study_id)
    return partial(storage.get_all_trials, study_id, deepcopy=False)


def _from_cache(storage: _CachedStorage, study_id: int) -> Mapping[int, FrozenTrial]:
    """Return the trials of Optuna's cache after it has fetched the changed ones, unsorted."""
    storage._read_trials_from_remote_storage(study_id)
    return storage._studies[study_id].trials
