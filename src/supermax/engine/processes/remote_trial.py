"""Trial and study that an objective sees in its cell: Optuna's own classes over a remote storage.

Optuna's code does all checking and bookkeeping. Only `suggest_*`, `should_prune` and reads of the
study become requests to the coordinator, and a trial may be interrupted when the run stops. The
study is Optuna's Study over a storage that reads from the coordinator and refuses to write.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    distribution_to_json,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.study.study import _ThreadLocalStudyAttribute
from optuna.trial import FrozenTrial, Trial, TrialState

from supermax._util.attributes import RECORD, REPORTED
from supermax.engine.processes.checkpoints import Checkpoints
from supermax.engine.processes.protocol import (
    PAUSE,
    Attribute,
    Channel,
    Message,
    Note,
    ReadStudy,
    RelativeParams,
    Reply,
    Report,
    ShouldPrune,
    Stop,
    StopStudy,
    Suggest,
    Task,
    json_or_pickle,
)
from supermax.engine.storage.run_folder import TrialFolder
from supermax.engine.trial.branch_names import compatible
from supermax.engine.trial.notes import Notes

P = ParamSpec("P")
T = TypeVar("T")


class TrialInterrupted(BaseException):
    """Ends the attempt because the run is stopping, or because the trial pauses. The trial is
    resumed later under its number.

    Not an Exception, so that an objective's `except Exception` does not catch it.
    """


class Connection:
    """Connection of one task to the coordinator: thread-safe, and closed when the task ends."""

    def __init__(self, channel: Channel, task: Task) -> None:
        self.task = task
        self.stop_requested = False
        self.system_attrs = dict(task.trial.system_attrs)  # with those that this attempt sets
        self._channel: Channel | None = channel
        self._lock = threading.RLock()
        self._notes = Notes()
        local = TrialFolder(Path(task.folder)).checkpoint
        self.checkpoints = Checkpoints(local, task.checkpoints, task.token)

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            raise RuntimeError(
                "This trial has ended: it can no longer report, suggest or read the study."
            )
        return self._channel

    def close(self, last: Message) -> None:
        """Send the last message of the task and refuse all others."""
        with self._lock:
            self.channel.send(last)
            self._channel = None

    def send(self, message: Message) -> None:
        """Send a message that has no reply."""
        with self._lock:
            self.channel.send(message)

    def note(self, facts: dict[str, object]) -> None:
        if self._notes.add(facts):
            self.send_notes()

    def send_notes(self) -> None:
        """Send pending notes, unless that would block; then they go with the next ones."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            channel = self._channel
            if channel and channel.is_writable() and (facts := self._notes.take()):
                channel.send(Note(facts))
        finally:
            self._lock.release()

    def request(self, message: Message) -> object:
        """Send a request, wait for its reply, and return the value or raise the error in it."""
        with self._lock:
            self.channel.send(message)
            while not isinstance(answer := self.channel.receive(), Reply):
                self.stop_requested |= isinstance(answer, Stop)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def check_stop(self) -> bool:
        with self._lock:
            for message in self.channel.pending():
                self.stop_requested |= isinstance(message, Stop)
        return self.stop_requested

    def raise_if_stopped(self) -> None:
        if self.check_stop():
            raise TrialInterrupted


_current: Connection | None = None


def set_current_connection(connection: Connection) -> None:
    global _current
    _current = connection


def current_study() -> RemoteStudy:
    """Return the study of the running task; references to the study inside a pickled objective
    become calls of this."""
    return RemoteStudy()


def _read(
    method: Callable[Concatenate[BaseStorage, P], T],
) -> Callable[Concatenate[RemoteStorage, P], T]:
    """Return a method of RemoteStorage that calls `method` in the coordinator."""
    signature = inspect.signature(method)

    def read(self: RemoteStorage, /, *args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind(self, *args, **kwargs).args[1:]
        return cast(T, self.read_study(method.__name__, *given))

    return read


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(
        "Inside a trial the study can be read but not changed: only the coordinator writes "
        "it. Return a value, report, or set attributes of the trial; change the study in the "
        "program that called supermax.optimize."
    )


class RemoteStorage(BaseStorage):
    """Storage that forwards reads, and a trial's own reports and attributes, to the coordinator.
    It refuses every other write.

    `connection` None: that of the task that runs at the time of the call.
    """

    def __init__(self, connection: Connection | None) -> None:
        self._fixed_connection = connection

    @property
    def _connection(self) -> Connection:
        connection = self._fixed_connection or _current
        if connection is None:
            raise RuntimeError("The study can only be read while a trial runs in this cell.")
        return connection

    def read_study(self, what: str, *args: object) -> object:
        return self._connection.request(ReadStudy(what, list(args)))

    get_study_id_from_name = _read(BaseStorage.get_study_id_from_name)
    get_study_name_from_id = _read(BaseStorage.get_study_name_from_id)
    get_study_directions = _read(BaseStorage.get_study_directions)
    get_study_user_attrs = _read(BaseStorage.get_study_user_attrs)
    get_study_system_attrs = _read(BaseStorage.get_study_system_attrs)
    get_all_studies = _read(BaseStorage.get_all_studies)
    get_trial = _read(BaseStorage.get_trial)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, object]:
        if self._connection.task.trial._trial_id == trial_id:
            return self._connection.system_attrs
        return self.get_trial(trial_id).system_attrs

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        wanted = None if states is None else [int(s) for s in TrialState if s in states]
        return cast(list[FrozenTrial], self.read_study("get_all_trials", study_id, wanted))

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        connection = self._check_own(trial_id)
        task = connection.task
        written = not task.away
        if written:
            try:
                folder = TrialFolder(Path(task.folder))
                folder.append_report(task.attempt, step, intermediate_value)
            except OSError:  # such as a full disk: the coordinator retries until it can be written
                written = False
        connection.send(Report(step, intermediate_value, written))

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        if key == RECORD:
            raise ValueError(f"The attribute {key!r} is reserved for Supermax; use another name.")
        self._set(trial_id, key, value, system=False)

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        self._set(trial_id, key, value, system=True)

    def _set(self, trial_id: int, key: str, value: object, *, system: bool) -> None:
        connection = self._check_own(trial_id)
        if not connection.task.volatile:
            json.dumps(value)  # raises what the study's storage would raise
        connection.request(Attribute(key, json_or_pickle(value), system))
        if system:
            connection.system_attrs[key] = value

    def _check_own(self, trial_id: int) -> Connection:
        connection = self._connection
        if connection.task.trial._trial_id != trial_id:
            _refuse()
        return connection

    create_new_study = _refuse
    delete_study = _refuse
    set_study_user_attr = _refuse
    set_study_system_attr = _refuse
    create_new_trial = _refuse
    set_trial_param = _refuse
    set_trial_state_values = _refuse


class RemoteStudy(Study):
    """Optuna's Study, read-only except for `stop`."""

    _storage: RemoteStorage

    def __init__(self, connection: Connection | None = None) -> None:
        self._storage = RemoteStorage(connection)
        self._thread_local = _ThreadLocalStudyAttribute()
        self._stop_flag = False

    @property
    def _task(self) -> Task:
        return self._storage._connection.task

    @property
    def study_name(self) -> str:  # type: ignore[override]
        return self._task.study_name

    @property
    def _study_id(self) -> int:  # type: ignore[override]
        return self._task.study_id

    @property
    def _directions(self) -> list[StudyDirection]:  # type: ignore[override]
        return [StudyDirection(direction) for direction in self._task.directions]

    @property
    def sampler(self) -> BaseSampler:  # type: ignore[override]
        return cast(BaseSampler, self._storage.read_study("sampler"))

    @property
    def pruner(self) -> BasePruner:  # type: ignore[override]
        return cast(BasePruner, self._storage.read_study("pruner"))

    def stop(self) -> None:
        self._storage._connection.send(StopStudy())


class RemoteTrial(Trial):
    """Optuna's Trial in a cell, with `attempt`, `plan`, `checkpoint_dir`, `stop_requested` and
    `note` in addition."""

    def __init__(self, connection: Connection) -> None:
        task = self._task = connection.task
        self._connection = connection
        self.study = RemoteStudy(connection)
        self.storage = self.study._storage
        self._trial_id = task.trial._trial_id
        self._cached_frozen_trial = task.trial
        self.relative_search_space = None
        self._relative_params = None
        # It reports a value for each of several objectives; in an earlier attempt, maybe.
        self._reports_all = any(key.startswith(REPORTED) for key in task.trial.system_attrs)
        self._fixed_params = task.trial.system_attrs.get("fixed_params", {})

    @property
    def attempt(self) -> int:
        """Number of this attempt at the trial, counted from 1."""
        return self._task.attempt

    @property
    def plan(self) -> dict[str, Any] | None:
        """Execution plan of this attempt; None: the run has no memory planner."""
        return self._task.plan

    @property
    def folder(self) -> Path:
        """Folder of this trial in the run folder, on this machine."""
        return Path(self._task.folder)

    @property
    def checkpoint_dir(self) -> Path:
        """Folder of this trial that all its attempts share; created on access."""
        return self._connection.checkpoints.open()

    @property
    def stop_requested(self) -> bool:
        """True once the run is stopping: save a checkpoint, the next report ends the trial."""
        return self._connection.check_stop()

    @property
    def relative_params(self) -> dict[str, object]:
        if self._relative_params is None:
            params = self._connection.request(RelativeParams())
            self._relative_params = cast(dict[str, object], params)
        return self._relative_params

    def note(self, **facts: object) -> None:
        """Show progress in the live view: finite numbers and short texts by name.

        It takes microseconds and never fails. Nothing is stored; the latest value of each name is
        shown while the trial runs. None, or a value that cannot be shown, removes the name. The
        view knows `encoder`, `epoch`, `epochs` and `samples_per_second`.
        """
        self._connection.note(facts)

    def report(self, value: float | Sequence[float], step: int) -> None:
        """Report an intermediate value; with several objectives, a sequence with the value of each
        (Optuna has no reports then). :class:`supermax.Promotion` compares trials by them."""
        self._connection.send_notes()
        if len(self.study.directions) > 1 and isinstance(value, Sequence):
            self._report_all(value, step)
        else:
            super().report(cast(float, value), step)
        self._connection.checkpoints.upload()
        self._connection.raise_if_stopped()

    def _report_all(self, values: Sequence[float], step: int) -> None:
        objectives = len(self.study.directions)
        if len(values) != objectives or int(step) < 0:
            raise ValueError(
                f"A report of this study has {objectives} values, one per objective, and a step "
                f"of at least 0, and not {values!r:.80} and {step!r:.20}."
            )
        self.storage.set_trial_system_attr(
            self._trial_id, f"{REPORTED}{int(step)}", [float(value) for value in values]
        )
        self._reports_all = True

    def should_prune(self) -> bool:
        if len(self.study.directions) > 1 and not self._reports_all:
            return super().should_prune()  # raises NotImplementedError
        self._connection.raise_if_stopped()
        answer = self._connection.request(ShouldPrune())
        if answer == PAUSE:
            self._connection.stop_requested = True  # the objective may still save a checkpoint
            raise TrialInterrupted
        return bool(answer)

    def _suggest(self, name: str, distribution: BaseDistribution) -> object:
        known = self._cached_frozen_trial.distributions.get(name)
        if known is not None and compatible(known, distribution):
            return self._cached_frozen_trial.params[name]
        self._connection.raise_if_stopped()
        internal = self._connection.request(Suggest(name, _portable(distribution)))
        value = distribution.to_external_repr(cast(float, internal))
        self._cached_frozen_trial.distributions[name] = distribution
        self._cached_frozen_trial.params[name] = value
        return value


def _portable(distribution: BaseDistribution) -> BaseDistribution | str:
    """Return the distribution as JSON text where that is exact, otherwise the object itself."""
    if isinstance(distribution, CategoricalDistribution):
        json_types = (type(None), bool, int, float, str)
        if not all(type(choice) in json_types for choice in distribution.choices):
            return distribution
    return distribution_to_json(distribution)
