"""Trials of the study of a run in memory: a read fetches the changed ones only.

Optuna's storages go through all trials at every read, at a cost that grows with the study. Here a
read looks at new trials and at those that were unfinished before; everything else is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.storages._rdb.models import TrialModel
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import select

_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)
_BLOCK = 100
"""Trials that are read at once. Reading one takes several times the memory that it occupies
afterwards, which a process rarely returns."""


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
        self._ended: list[FrozenTrial] = []  # those taken over alone since the last read
        self.parts = EqualParts()

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
            self.parts.share(trial)
            self.finished.append(trial)

    def add(self, trial: FrozenTrial) -> bool:
        """Add a trial that this run has created; return False if trials of others, which are not
        known yet, come before it."""
        if trial.number != len(self.trials):
            return False
        self.trials.append(trial)
        self._unfinished.add(trial.number)
        return True

    def end(self, trial: FrozenTrial) -> bool:
        """Take over a trial that this run has finished; return False if it is not known as
        unfinished."""
        if trial.number not in self._unfinished:
            return False
        self._replace(trial)
        self._ended.append(trial)
        return True

    def pop_ended(self) -> list[FrozenTrial]:
        """Return the trials that `end` has taken over since the last call."""
        ended, self._ended = self._ended, []
        return ended

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


class EqualParts:
    """Parts that many trials have in common, each kept once: less than half of the memory."""

    def __init__(self) -> None:
        self._distributions: dict[str, BaseDistribution] = {}

    def share(self, trial: FrozenTrial) -> None:
        """Replace names and distributions of a trial by the equal ones of earlier trials."""
        trial.distributions = {
            _name(name): self._distributions.setdefault(repr(distribution), distribution)
            for name, distribution in trial.distributions.items()
        }
        trial.params = {_name(name): value for name, value in trial.params.items()}
        trial.user_attrs = {name: _interned(value) for name, value in trial.user_attrs.items()}


def _interned(value: object) -> object:
    """Return the value with interned keys."""
    if isinstance(value, dict):
        return {_name(key): _interned(each) for key, each in value.items()}
    return [_interned(each) for each in value] if isinstance(value, list) else value


def _name(key: str) -> str:
    """Return the interned name. A storage in memory may hold keys of other types:
    they stay."""
    return sys.intern(key) if type(key) is str else key


def reader(
    storage: BaseStorage, history: TrialHistory, own: Mapping[int, FrozenTrial]
) -> Callable[[], Mapping[int, FrozenTrial] | Sequence[FrozenTrial]]:
    """Return the function that reads the trials of a study, for `TrialHistory.update`. `own`: this
    run's copies of RUNNING trials by id, which need no reading."""
    if isinstance(storage, _CachedStorage):
        return partial(_from_cache, storage, history, own)
    return partial(storage.get_all_trials, history.study_id, deepcopy=False)


def _from_cache(
    storage: _CachedStorage, history: TrialHistory, own: Mapping[int, FrozenTrial]
) -> Mapping[int, FrozenTrial]:
    """Return the trials of Optuna's cache after it has fetched the changed ones, unsorted."""
    fill_cache(storage, history.study_id, history.parts)
    study = storage._studies[history.study_id]
    running = _running(storage._backend, history.study_id) if own else set()
    skipped = study.unfinished_trial_ids & own.keys() & running
    with storage._lock:
        study.unfinished_trial_ids -= skipped
    try:
        storage._read_trials_from_remote_storage(history.study_id)
    finally:
        with storage._lock:
            study.unfinished_trial_ids |= skipped
    with storage._lock:  # which has read them once more: one copy is enough
        storage._add_trials_to_cache(history.study_id, history.pop_ended())
    return study.trials


def _running(backend: RDBStorage, study_id: int) -> set[int]:
    """Return the ids of the RUNNING trials in a database."""
    query = select(TrialModel.trial_id).where(
        TrialModel.study_id == study_id, TrialModel.state == TrialState.RUNNING
    )
    with _create_scoped_session(backend.scoped_session) as session:
        return set(session.scalars(query))


def read_finished(storage: BaseStorage, trial_id: int) -> FrozenTrial:
    """Return a trial that has just finished, and add it to Optuna's cache."""
    trial = storage.get_trial(trial_id)
    if isinstance(storage, _CachedStorage):
        with storage._lock:
            study_id, _ = storage._trial_id_to_study_id_and_number[trial_id]
            storage._add_trials_to_cache(study_id, [trial])
            storage._studies[study_id].unfinished_trial_ids.discard(trial_id)
    return trial


def fill_cache(storage: BaseStorage, study_id: int, parts: EqualParts | None = None) -> None:
    """Read all trials into the cache of Optuna's storage if it has read none of the study yet.

    It reads block by block: Optuna reads all at once, and occupies several times the memory. Other
    threads find all of the trials in the cache or, also if a read fails, none."""
    if not isinstance(storage, _CachedStorage):
        return
    with storage._lock:
        study = storage._studies.setdefault(study_id, _StudyInfo())
        if study.unfinished_trial_ids or study.last_finished_trial_id >= 0:
            return
        trials = _read_in_blocks(storage._backend, study_id, parts or EqualParts())
        storage._add_trials_to_cache(study_id, trials)
        finished = [trial._trial_id for trial in trials if trial.state.is_finished()]
        study.unfinished_trial_ids = {trial._trial_id for trial in trials}.difference(finished)
        study.last_finished_trial_id = max(finished, default=-1)


def _read_in_blocks(backend: RDBStorage, study_id: int, parts: EqualParts) -> list[FrozenTrial]:
    """Return the trials of a study that are in a database, in the order of their ids."""
    query = select(TrialModel.trial_id).where(TrialModel.study_id == study_id)
    with _create_scoped_session(backend.scoped_session) as session:
        ids = list(session.scalars(query.order_by(TrialModel.trial_id)))
    trials = []
    for start in range(0, len(ids), _BLOCK):
        block = set(ids[start : start + _BLOCK])
        # The answer also has trials that are newer than all of these: the next read finds them.
        found = backend._get_trials(study_id, None, block, ids[-1])
        for trial in (trial for trial in found if trial._trial_id in block):
            parts.share(trial)
            trials.append(trial)
    return trials
