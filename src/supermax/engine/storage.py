"""The study's storage as a run uses it: patient, and claiming every trial it takes.

A trial is claimed in the same transaction that makes it, so a kill at any instant leaves either
no trial or one that the next run knows as its own. Everything else is Optuna's storage.
"""

from __future__ import annotations

import copy
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from supermax.engine import rdb
from supermax.engine.patience import Patience, Subject, Wait
from supermax.engine.sqlite import SameFile
from supermax.errors import EnvironmentFault, UserError
from supermax.naming import CLAIM, CREATION

T = TypeVar("T")
_STORAGE = Subject("the study's storage", "The study's storage has not answered", "Bring it back")
_LOOK_UP = 1.0  # seconds between two looks at how long a server has been silent


class PatientStorage(BaseStorage):
    """Wraps a storage: waits out what passes (locks, restarts, lost connections), claims trials
    for `claim`, and does no write twice."""

    def __init__(
        self, inner: BaseStorage, study: Study, *, file: SameFile | None, patience: Patience
    ) -> None:
        self.inner = inner
        self.claim = ""  # set once the study's identity is known
        self.patience = patience
        self._server = rdb.server_of(inner)
        self._study_id = study._study_id
        self._study_name = study.study_name
        self._own: dict[
            int, FrozenTrial
        ] = {}  # RUNNING trials made here, as the database has them
        self._file = file

    def _do(self, action: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return self._patiently(partial(action, *args, **kwargs))
        except KeyError as error:
            if self._study_is_gone():
                raise UserError(
                    f"The study '{self._study_name}' is not in its storage any more. Create it "
                    f"again, or open the storage it is in."
                ) from error
            raise

    def _patiently(self, action: Callable[[], T]) -> T:
        wait = self.patience.wait_for(_STORAGE)
        while True:
            try:
                return self._answer(action, wait) if self._server is not None else action()
            except (StorageInternalError, SQLAlchemyError) as error:
                if not rdb.passing(error, read_only=bool(self.claim)):
                    if rdb.broken(error):
                        raise EnvironmentFault(_unusable(rdb.reason(error))) from error
                    raise
                failed = error
            except (OSError, json.JSONDecodeError) as error:  # a journal file
                raise EnvironmentFault(_unusable(rdb.reason(error))) from error
            self.check_file()
            wait.pause(rdb.reason(failed))

    def _answer(self, action: Callable[[], T], wait: Wait) -> T:
        """Run the action on a thread of its own, so that signals are handled while a server is
        silent: most drivers block in C, and roll back over the same connection afterwards. A
        thread that is left behind ends with its connection and does not keep the process alive.
        Until then it may hold the lock of Optuna's cache."""
        answers: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()

        def work() -> None:
            try:
                answers.put((action(), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=work, name="supermax-storage", daemon=True).start()
        while True:
            try:
                answer = answers.get(timeout=_LOOK_UP)
            except Empty:
                wait.check("its server is silent")
            else:
                break
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def _study_is_gone(self) -> bool:
        try:
            self._patiently(partial(self.inner.get_study_user_attrs, self._study_id))
        except KeyError:
            return True
        return False

    def check_file(self) -> None:
        if self._file is not None and not self._file.is_there():
            raise EnvironmentFault(_unusable(f"{self._file.path} was removed or replaced"))

    # Trials: the two places where one becomes ours.

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        if template_trial is None:
            template_trial = optuna.trial.FrozenTrial(
                number=-1,
                trial_id=-1,
                state=TrialState.RUNNING,
                value=None,
                datetime_start=datetime.now(),
                datetime_complete=None,
                params={},
                distributions={},
                user_attrs={},
                system_attrs={CLAIM: self.claim},
                intermediate_values={},
            )
        if self._server is None:
            trial_id = self._do(self.inner.create_new_trial, study_id, template_trial)
        else:
            trial_id = self._create_once(study_id, template_trial)
        if isinstance(self.inner, _CachedStorage) and template_trial.state is TrialState.RUNNING:
            _, number = self.inner._trial_id_to_study_id_and_number[trial_id]
            self._own[trial_id] = _copy(self.inner._studies[study_id].trials[number])
        return trial_id

    def _create_once(self, study_id: int, template: FrozenTrial) -> int:
        """Create the trial on a server, which may lose the answer."""
        marked = copy.copy(template)
        marked.system_attrs = {**template.system_attrs, CREATION: uuid.uuid4().hex}
        attempts = itertools.count()

        def create() -> FrozenTrial:
            repeated = next(attempts) > 0
            return rdb.create_trial(self.inner, study_id, marked, repeated=repeated)

        return self._do(create)._trial_id

    def _write(self, trial_id: int, action: Callable[..., T], *args: Any) -> T:
        """A write to a trial. One that somebody else has finished is not ours any more."""
        try:
            return self._do(action, trial_id, *args)
        except UpdateFinishedTrialError:
            self._own.pop(trial_id, None)
            raise

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        if state is not TrialState.RUNNING:
            done = self._write(trial_id, self._finish, state, values)
            self._own.pop(trial_id, None)
            return done
        backend = self._sql()
        if backend is not None:
            return self._do(rdb.take_trial, backend, trial_id, self.claim)
        self.set_trial_system_attr(trial_id, CLAIM, self.claim)
        taken = self._do(self.inner.set_trial_state_values, trial_id, state, values)
        if not taken:  # somebody else was faster
            self.set_trial_system_attr(trial_id, CLAIM, None)
        return taken

    def _finish(self, trial_id: int, state: TrialState, values: Sequence[float] | None) -> bool:
        """Finish a trial. One that is finished just so is a write whose answer was lost."""
        try:
            return self.inner.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            found = self.inner.get_trial(trial_id)
            if found.state is state and list(found.values or ()) == list(values or ()):
                return True
            raise

    def _sql(self) -> RDBStorage | None:
        backend = rdb.unwrapped(self.inner)
        return backend if isinstance(backend, RDBStorage) else None

    def forget_steps(self, trial_id: int, first: int) -> None:
        """Take back intermediate values from step `first` on, left by an attempt that does not
        count. Optuna has no call for that; where a storage cannot, they become NaN."""
        if (own := self._own.get(trial_id)) is not None:
            kept = {s: v for s, v in own.intermediate_values.items() if s < first}
            own.intermediate_values = kept
        backend = rdb.unwrapped(self.inner)
        if isinstance(backend, RDBStorage):
            self._do(rdb.delete_steps, backend, trial_id, first)
        elif isinstance(backend, InMemoryStorage):
            with backend._lock:
                trial = copy.copy(backend._get_trial(trial_id))
                trial.intermediate_values = {
                    step: value
                    for step, value in trial.intermediate_values.items()
                    if step < first
                }
                backend._set_trial(trial_id, trial)
        else:
            for step in self.get_trial(trial_id).intermediate_values:
                if step >= first:
                    self.set_trial_intermediate_value(trial_id, step, float("nan"))

    # The rest is passed on.

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        return self.inner.create_new_study(directions, study_name)  # a run makes none: no retries

    def delete_study(self, study_id: int) -> None:
        self.inner.delete_study(study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._do(self.inner.set_study_user_attr, study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._do(self.inner.set_study_system_attr, study_id, key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._do(self.inner.get_study_id_from_name, study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._do(self.inner.get_study_name_from_id, study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._do(self.inner.get_study_directions, study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._do(self.inner.get_study_user_attrs, study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._do(self.inner.get_study_system_attrs, study_id)

    def get_all_studies(self) -> list[Any]:
        return self._do(self.inner.get_all_studies)

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        self._write(
            trial_id, self.inner.set_trial_param, param_name, param_value_internal, distribution
        )
        own = self._own.get(trial_id)
        if own is not None and param_name not in own.params:  # a database keeps the first
            own.params[param_name] = distribution.to_external_repr(param_value_internal)
            own.distributions[param_name] = distribution

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        return self._do(self.inner.get_trial_id_from_study_id_trial_number, study_id, trial_number)

    def get_trial_number_from_id(self, trial_id: int) -> int:
        return self._do(self.inner.get_trial_number_from_id, trial_id)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        return self._do(self.inner.get_best_trial, study_id)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        self._write(trial_id, self.inner.set_trial_intermediate_value, step, intermediate_value)
        if (own := self._own.get(trial_id)) is not None:
            own.intermediate_values[step] = intermediate_value

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._write(trial_id, self.inner.set_trial_user_attr, key, value)
        if (own := self._own.get(trial_id)) is not None:
            own.user_attrs[key] = _as_stored(value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._write(trial_id, self.inner.set_trial_system_attr, key, value)
        if (own := self._own.get(trial_id)) is not None:
            own.system_attrs[key] = _as_stored(value)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if (own := self._own.get(trial_id)) is not None:
            return _copy(own)  # a database takes milliseconds to say the same
        return self._do(self.inner.get_trial, trial_id)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        if (own := self._own.get(trial_id)) is not None:
            return dict(own.system_attrs)
        return self._do(self.inner.get_trial_system_attrs, trial_id)

    def get_trial_user_attrs(self, trial_id: int) -> dict[str, Any]:
        return self._do(self.inner.get_trial_user_attrs, trial_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Any = None
    ) -> list[FrozenTrial]:
        return self._do(self.inner.get_all_trials, study_id, deepcopy, states)

    def remove_session(self) -> None:
        self.inner.remove_session()


def _as_stored(value: Any) -> Any:
    """A database gives back JSON: lists for tuples, strings for keys."""
    return json.loads(json.dumps(value))


def _copy(trial: FrozenTrial) -> FrozenTrial:
    twin = copy.copy(trial)
    twin.params = dict(trial.params)
    twin.distributions = dict(trial.distributions)
    twin.user_attrs = dict(trial.user_attrs)
    twin.system_attrs = dict(trial.system_attrs)
    twin.intermediate_values = dict(trial.intermediate_values)
    return twin


def _unusable(why: str) -> str:
    return (
        f"The study's storage cannot be used any more: {why}. Outcomes that are not in the study "
        f"yet are in the run folder; bring the storage back and call again."
    )
