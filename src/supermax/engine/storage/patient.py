"""Storage wrapper of a run: retries failed operations, and claims every trial it takes.

A trial is claimed in the same transaction that creates it, so a kill at any moment leaves either
no trial or one that the next run recognises as its own. Everything else is Optuna's storage.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent import futures
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import optuna
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from supermax._util.attributes import CLAIM, CREATION
from supermax.engine.storage import rdb
from supermax.engine.storage.history import TrialHistory, read_finished, reader
from supermax.engine.storage.leases import FIRST_TOKEN, LeaseLost, Leases
from supermax.engine.storage.patience import Patience, Subject, Wait
from supermax.engine.storage.sqlite import SameFile
from supermax.errors import StorageFault, UserError

P = ParamSpec("P")
T = TypeVar("T")
_STORAGE = Subject(
    "the study's storage", "The study's storage has not answered", "Bring it back", StorageFault
)
_CHECK_INTERVAL = 1.0  # seconds between two checks of the deadline while a server is silent
_FRESH = 1.0  # seconds; what other programs write to the study is seen that late


def _forwarded(
    method: Callable[Concatenate[BaseStorage, P], T], *, retry: bool = True
) -> Callable[Concatenate[PatientStorage, P], T]:
    """Return a method of PatientStorage that calls `method` of the wrapped storage."""
    name = method.__name__

    def forward(self: PatientStorage, /, *args: P.args, **kwargs: P.kwargs) -> T:
        inner: Callable[P, T] = getattr(self.inner, name)
        return self._do(inner, *args, **kwargs) if retry else inner(*args, **kwargs)

    forward.__name__ = name  # for tracebacks; functools.wraps would make it abstract again
    return forward


class StudyDeleted(UserError):
    """Error: the study is not in its storage any more."""


class PatientStorage(BaseStorage):
    """Wrapper that waits out transient errors (locks, restarts, lost connections), claims trials
    for `claim`, and applies no write twice.

    `file`: the study's file; None: a server, or memory.
    """

    def __init__(
        self, inner: BaseStorage, study: Study, *, file: SameFile | None, patience: Patience
    ) -> None:
        self.inner = inner
        self.claim = ""  # set once the study's identity is known
        self.patience = patience
        self._server = rdb.server_of(inner)
        self.leases: Leases | None = None  # set by a run on a server, which others may share
        self._study_id = study._study_id
        self._study_name = study.study_name
        self._cached_trials: dict[int, FrozenTrial] = {}  # RUNNING ones created here
        self._held: rdb.Parameters | None = None  # those of one trial, to be written together
        self._file = file
        self._history = TrialHistory(study._study_id)
        self._read = reader(inner, self._history, self._cached_trials)
        self._read_at = -math.inf  # moment of the last read; -inf: the next use reads again

    def _do(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self._retry(partial(action, *args, **kwargs))
        except KeyError as error:
            if self._study_is_gone():
                raise StudyDeleted(
                    f"The study '{self._study_name}' is not in its storage any more. Create it "
                    f"again, or open the storage that has it."
                ) from error
            raise

    def _retry(self, action: Callable[[], T]) -> T:
        """Run the action until it succeeds, fails for good, or the wait times out."""
        wait = self.patience.wait_for(_STORAGE)
        while True:
            try:
                return self._in_thread(action, wait) if self._server is not None else action()
            except (StorageInternalError, SQLAlchemyError) as error:
                if not rdb.is_transient(error, underway=self._underway):
                    if rdb.is_broken(error):
                        raise StorageFault(_unusable(rdb.reason(error))) from error
                    raise
                failed = error
            except (OSError, json.JSONDecodeError) as error:  # a journal file
                raise StorageFault(_unusable(rdb.reason(error))) from error
            self.check_file()
            wait.pause(rdb.reason(failed))

    def _in_thread(self, action: Callable[[], T], wait: Wait) -> T:
        """Run the action on a thread of its own, so that signals are handled while a server is
        silent: most drivers block in C, and roll back over the same connection afterwards.

        An abandoned thread ends with its connection and does not keep the process alive. Until
        then it may hold the lock of Optuna's cache.
        """
        future: futures.Future[T] = futures.Future()

        def work() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="supermax-storage", daemon=True).start()
        while not futures.wait([future], _CHECK_INTERVAL).done:
            wait.check("its server is silent")
        return future.result()

    def call(self, action: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that uses the storage, and retry it while the storage is away."""
        return self._do(action, *args, **kwargs)

    def forget(self, trial_id: int) -> None:
        """Drop a trial from the cache that this run no longer owns: others may change it."""
        self._cached_trials.pop(trial_id, None)
        self._read_at = -math.inf

    @property
    def _underway(self) -> bool:
        """Return whether the run has written to the storage."""
        return bool(self.claim) and (self._server is None or self.leases is not None)

    def token_of(self, trial_id: int) -> int:
        """Return the fencing token of a trial's lease; 0: trials have none here."""
        return self.leases.tokens.get(trial_id, 0) if self.leases is not None else 0

    def _study_is_gone(self) -> bool:
        try:
            self._retry(partial(self.inner.get_study_user_attrs, self._study_id))
        except KeyError:
            return True
        return False

    def check_file(self) -> None:
        """Raise EnvironmentFault if the study's file was removed or replaced."""
        if self._file is not None and not self._file.is_there():
            raise StorageFault(_unusable(f"{self._file.path} was removed or replaced"))

    # The two operations that claim a trial: creation, and WAITING → RUNNING.

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        if template_trial is None:
            template_trial = optuna.trial.create_trial(
                state=TrialState.RUNNING, system_attrs={CLAIM: self.claim}
            )
        if self._server is None:
            trial_id = self._do(self.inner.create_new_trial, study_id, template_trial)
        else:
            trial_id = self._create_once(study_id, template_trial)
        if isinstance(self.inner, _CachedStorage) and template_trial.state is TrialState.RUNNING:
            _, number = self.inner._trial_id_to_study_id_and_number[trial_id]
            created = _copy(self.inner._studies[study_id].trials[number])
            self._cached_trials[trial_id] = created
            if self._history.add(created):
                return trial_id
        self._read_at = -math.inf
        return trial_id

    def _create_once(self, study_id: int, template: FrozenTrial) -> int:
        """Create the trial on a server, once even if the reply to the commit is lost."""
        marked = copy.copy(template)
        marked.system_attrs = {**template.system_attrs, CREATION: uuid.uuid4().hex}
        attempts = itertools.count()

        def create() -> FrozenTrial:
            repeated = next(attempts) > 0
            return rdb.create_trial(
                self.inner, study_id, marked, repeated=repeated, leases=self.leases
            )

        trial_id = self._do(create)._trial_id
        if self.leases is not None and marked.state is TrialState.RUNNING:
            self.leases.tokens[trial_id] = FIRST_TOKEN
        return trial_id

    def _write(
        self,
        trial_id: int,
        action: Callable[Concatenate[int, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Write to a trial that this run owns; drop it from the cache if it does no longer, or if
        another program has finished it."""
        if trial_id not in self._cached_trials:
            self._read_at = -math.inf
        try:
            return self._do(self._checked(trial_id, action), trial_id, *args, **kwargs)
        except (UpdateFinishedTrialError, LeaseLost):
            self._cached_trials.pop(trial_id, None)
            raise

    def _checked(
        self, trial_id: int, action: Callable[P, T], *, ends: bool = False
    ) -> Callable[P, T]:
        """Return the action with a check of the trial's lease in its transaction."""
        if (leases := self.leases) is None:
            return action

        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            with leases.writing(trial_id, ends=ends):
                return action(*args, **kwargs)

        return checked

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        if state is not TrialState.RUNNING:
            return self._finish(trial_id, state, values)
        self._read_at = -math.inf
        backend = rdb.uncached(self.inner)
        if isinstance(backend, RDBStorage):
            taken = self._do(rdb.take_trial, backend, trial_id, self.claim, self.leases)
            if taken and self.leases is not None:
                self.leases.tokens[trial_id] = FIRST_TOKEN
            return taken
        self.set_trial_system_attr(trial_id, CLAIM, self.claim)
        taken = self._do(self.inner.set_trial_state_values, trial_id, state, values)
        if not taken:  # another run was faster
            self.set_trial_system_attr(trial_id, CLAIM, None)
        return taken

    def _finish(self, trial_id: int, state: TrialState, values: Sequence[float] | None) -> bool:
        """Finish a trial. One that this run owns is then read alone: a read of all unfinished
        trials would make an end cost more the more trials are paused."""
        read_at, self._read_at = self._read_at, -math.inf
        try:
            done = self._do(self._finish_once, trial_id, state, values)
        finally:
            owned = self._cached_trials.pop(trial_id, None) is not None
        if owned and self._history.end(self._do(read_finished, self.inner, trial_id)):
            self._read_at = read_at
        return done

    def _finish_once(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None
    ) -> bool:
        """Finish a trial. If it already has this state and these values by this run, an earlier
        attempt at this write succeeded and its reply was lost. It has removed the lease too, so
        that the check before the commit may fail first."""
        finish = self._checked(trial_id, self.inner.set_trial_state_values, ends=True)
        try:
            done = finish(trial_id, state, values)
        except (UpdateFinishedTrialError, LeaseLost):
            found = self.inner.get_trial(trial_id)
            if self.leases is not None and found.system_attrs.get(CLAIM) != self.claim:
                raise LeaseLost(trial_id) from None  # another run reports its end
            if found.state is not state or list(found.values or ()) != list(values or ()):
                raise
            done = True
        if self.leases is not None:
            self.leases.tokens.pop(trial_id, None)
        return done

    def forget_steps(self, trial_id: int, first: int) -> None:
        """Delete intermediate values from step `first` on, which a superseded attempt has
        reported.

        Optuna has no call for it; in storages that cannot, they become NaN.
        """
        if (cached := self._cached_trials.get(trial_id)) is not None:
            kept = {s: v for s, v in cached.intermediate_values.items() if s < first}
            cached.intermediate_values = kept
        backend = rdb.uncached(self.inner)
        if isinstance(backend, RDBStorage):
            delete = self._checked(trial_id, rdb.delete_steps)
            self._do(delete, backend, trial_id, first)
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

    # Writes that also update the cache.

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        if self._held is None or not self._can_hold(param_name, distribution):
            self._write(
                trial_id,
                self.inner.set_trial_param,
                param_name,
                param_value_internal,
                distribution,
            )
        else:
            self._held[param_name] = param_value_internal, distribution
        cached = self._cached_trials.get(trial_id)
        # A database keeps the first value.
        if cached is not None and param_name not in cached.params:
            cached.params[param_name] = distribution.to_external_repr(param_value_internal)
            cached.distributions[param_name] = distribution

    @contextlib.contextmanager
    def parameters_together(self, trial_id: int) -> Iterator[None]:
        """Write the parameters of a trial that are sampled inside this block in one transaction,
        if it is a trial that this run has created in a database."""
        if trial_id not in self._cached_trials:
            yield
            return
        self._held = {}
        try:
            yield
        finally:
            held, self._held = self._held, None
            if held:
                backend = cast(RDBStorage, rdb.uncached(self.inner))
                self._write(trial_id, rdb.insert_parameters, backend, held)

    def _can_hold(self, name: str, distribution: BaseDistribution) -> bool:
        """Return whether Optuna's cache knows the distribution of a parameter; raise ValueError if
        it is incompatible. The first value of a parameter is left to Optuna, which checks it."""
        assert isinstance(self.inner, _CachedStorage)
        known = self.inner._studies[self._study_id].param_distribution.get(name)
        if known is not None:
            check_distribution_compatibility(known, distribution)
        return known is not None

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        self._write(trial_id, self.inner.set_trial_intermediate_value, step, intermediate_value)
        if (cached := self._cached_trials.get(trial_id)) is not None:
            cached.intermediate_values[step] = intermediate_value

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        self._write(trial_id, self.inner.set_trial_user_attr, key, value)
        if (cached := self._cached_trials.get(trial_id)) is not None:
            cached.user_attrs[key] = _as_stored(value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._write(trial_id, self.inner.set_trial_system_attr, key, value)
        if (cached := self._cached_trials.get(trial_id)) is not None:
            cached.system_attrs[key] = _as_stored(value)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if (cached := self._cached_trials.get(trial_id)) is not None:
            return _copy(cached)  # saves a query of milliseconds
        return self._do(self.inner.get_trial, trial_id)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, object]:
        if (cached := self._cached_trials.get(trial_id)) is not None:
            return dict(cached.system_attrs)
        return self._do(self.inner.get_trial_system_attrs, trial_id)

    # Reads of all trials.

    def history(self, *, now: bool = False) -> TrialHistory:
        """Return the trials of the study: with everything that this run has written, and with
        what others have written until a second ago. `now`: until now."""
        if now or time.monotonic() - self._read_at > _FRESH:
            found = self._do(self._read)
            self._history.update(found)
            self._history.prefer(self._cached_trials.values())
            self._read_at = time.monotonic()
        return self._history

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if study_id != self._study_id:
            return self._do(self.inner.get_all_trials, study_id, deepcopy, states)
        trials = self.history().select(states)
        return copy.deepcopy(trials) if deepcopy else trials

    # All other operations are forwarded.

    create_new_study = _forwarded(BaseStorage.create_new_study, retry=False)  # runs create none
    delete_study = _forwarded(BaseStorage.delete_study, retry=False)
    remove_session = _forwarded(BaseStorage.remove_session, retry=False)
    set_study_user_attr = _forwarded(BaseStorage.set_study_user_attr)
    set_study_system_attr = _forwarded(BaseStorage.set_study_system_attr)
    get_study_id_from_name = _forwarded(BaseStorage.get_study_id_from_name)
    get_study_name_from_id = _forwarded(BaseStorage.get_study_name_from_id)
    get_study_directions = _forwarded(BaseStorage.get_study_directions)
    get_study_user_attrs = _forwarded(BaseStorage.get_study_user_attrs)
    get_study_system_attrs = _forwarded(BaseStorage.get_study_system_attrs)
    get_all_studies = _forwarded(BaseStorage.get_all_studies)
    get_best_trial = _forwarded(BaseStorage.get_best_trial)
    get_trial_user_attrs = _forwarded(BaseStorage.get_trial_user_attrs)
    get_trial_number_from_id = _forwarded(BaseStorage.get_trial_number_from_id)
    get_trial_id_from_study_id_trial_number = _forwarded(
        BaseStorage.get_trial_id_from_study_id_trial_number
    )


def _as_stored(value: object) -> object:
    """Return the value as a database returns it, after a JSON round trip."""
    return json.loads(json.dumps(value))


def _copy(trial: FrozenTrial) -> FrozenTrial:
    copied = copy.copy(trial)
    copied.params = dict(trial.params)
    copied.distributions = dict(trial.distributions)
    copied.user_attrs = dict(trial.user_attrs)
    copied.system_attrs = dict(trial.system_attrs)
    copied.intermediate_values = dict(trial.intermediate_values)
    return copied


def _unusable(why: str) -> str:
    return (
        f"The study's storage cannot be used any more: {why}. Outcomes that are not in the study "
        f"yet are in the run folder. Restore the storage and call again."
    )
