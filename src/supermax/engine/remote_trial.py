"""The trial an objective sees in its cell: Optuna's own Trial, its storage at the other end.

Optuna's code does all checking and bookkeeping; what differs is where a draw comes from, who
answers `should_prune`, and that a stop can arrive. Study views are Optuna's Study over a storage
that reads from the coordinator and refuses to write.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    distribution_to_json,
)
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.study.study import _ThreadLocalStudyAttribute
from optuna.trial import FrozenTrial, Trial

from supermax.engine.folder import TrialFolder
from supermax.engine.names import compatible
from supermax.engine.notes import Notes
from supermax.engine.protocol import (
    RECORD,
    Attribute,
    Channel,
    Look,
    Message,
    Note,
    RelativeParams,
    Reply,
    Report,
    ShouldPrune,
    Stop,
    StopStudy,
    Suggest,
    Task,
    faithful,
)
from supermax.files import make_folder


class TrialInterrupted(BaseException):
    """The run is stopping: this trial ends here and goes on, under its number, another time.

    Not an Exception, so that an objective's `except Exception` does not swallow it.
    """


class Link:
    """The cell's side of the conversation about one task; safe to use from the objective's
    threads, and mute once the task is done."""

    def __init__(self, channel: Channel, task: Task) -> None:
        self.task = task
        self.stop_requested = False
        self.system_attrs = dict(task.trial.system_attrs)  # as far as this attempt set them
        self._channel: Channel | None = channel
        self._lock = threading.RLock()
        self._notes = Notes()

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            raise RuntimeError("This trial has ended; nothing more can be asked or told.")
        return self._channel

    def end(self, last: Message) -> None:
        with self._lock:
            self.channel.send(last)
            self._channel = None

    def tell(self, message: Message) -> None:
        with self._lock:
            self.channel.send(message)

    def note(self, facts: dict[str, object]) -> None:
        if self._notes.add(facts):
            self.send_notes()

    def send_notes(self) -> None:
        """Say what has been noted, unless that would have to wait; then it goes next time."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            channel = self._channel
            if channel and channel.has_room() and (facts := self._notes.take()):
                channel.send(Note(facts))
        finally:
            self._lock.release()

    def ask(self, message: Message) -> Any:
        with self._lock:
            self.channel.send(message)
            while not isinstance(answer := self.channel.receive(), Reply):
                self.stop_requested |= isinstance(answer, Stop)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def check_stop(self) -> bool:
        with self._lock:
            for message in self.channel.waiting():
                self.stop_requested |= isinstance(message, Stop)
        return self.stop_requested

    def end_if_stopped(self) -> None:
        if self.check_stop():
            raise TrialInterrupted


_current: Link | None = None


def set_current_link(link: Link) -> None:
    global _current
    _current = link


def current_study() -> RemoteStudy:
    """What a reference to the study inside the objective becomes in a cell."""
    return RemoteStudy()


class RemoteStorage(BaseStorage):
    """Passes on reads and what a trial says of itself; refuses every other write."""

    def __init__(self, link: Link | None = None) -> None:
        self._given = link

    @property
    def _link(self) -> Link:
        link = self._given or _current
        if link is None:
            raise RuntimeError("The study can only be looked at while a trial runs in this cell.")
        return link

    def _look(self, what: str, *args: Any) -> Any:
        return self._link.ask(Look(what, list(args)))

    def get_study_id_from_name(self, study_name: str) -> int:
        return int(self._look("get_study_id_from_name", study_name))

    def get_study_name_from_id(self, study_id: int) -> str:
        return str(self._look("get_study_name_from_id", study_id))

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return [StudyDirection(d) for d in self._look("get_study_directions", study_id)]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return dict(self._look("get_study_user_attrs", study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return dict(self._look("get_study_system_attrs", study_id))

    def get_all_studies(self) -> list[Any]:
        return list(self._look("get_all_studies"))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        trial: FrozenTrial = self._look("get_trial", trial_id)
        return trial

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        if self._link.task.trial._trial_id == trial_id:
            return self._link.system_attrs
        return self.get_trial(trial_id).system_attrs

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Any = None
    ) -> list[FrozenTrial]:
        wanted = (
            None if states is None else [int(s) for s in optuna.trial.TrialState if s in states]
        )
        return list(self._look("get_all_trials", study_id, wanted))

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        link = self._own(trial_id)
        try:
            folder = TrialFolder(Path(link.task.folder))
            folder.append_report(link.task.attempt, step, intermediate_value)
            written = True
        except OSError:  # a full disk: the coordinator waits until it can be written
            written = False
        link.tell(Report(step, intermediate_value, written))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        if key == RECORD:
            raise ValueError(f"The attribute {key!r} is kept by Supermax; use another name.")
        self._set(trial_id, key, value, system=False)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._set(trial_id, key, value, system=True)

    def _set(self, trial_id: int, key: str, value: Any, *, system: bool) -> None:
        link = self._own(trial_id)
        if not link.task.volatile:
            json.dumps(value)  # raises here what the study's storage would raise
        link.ask(Attribute(key, faithful(value), system))
        if system:
            link.system_attrs[key] = value

    def _own(self, trial_id: int) -> Link:
        link = self._link
        if link.task.trial._trial_id != trial_id:
            self._refuse()
        return link

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            "Inside a trial the study can be read but not changed, since only the coordinator "
            "writes it. Return, report or set attributes on the trial; change the study from "
            "the program that called supermax.optimize."
        )

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        self._refuse()

    def delete_study(self, study_id: int) -> None:
        self._refuse()

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._refuse()

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._refuse()

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        self._refuse()

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: Any
    ) -> None:
        self._refuse()

    def set_trial_state_values(self, trial_id: int, state: Any, values: Any = None) -> bool:
        self._refuse()


class RemoteStudy(Study):
    """Optuna's Study with everything that reads, and `stop`. Nothing that writes."""

    _storage: RemoteStorage

    def __init__(self, link: Link | None = None) -> None:
        self._storage = RemoteStorage(link)
        self._thread_local = _ThreadLocalStudyAttribute()
        self._stop_flag = False

    @property
    def _task(self) -> Task:
        return self._storage._link.task

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
    def sampler(self) -> Any:  # type: ignore[override]
        return self._storage._look("sampler")

    @property
    def pruner(self) -> Any:  # type: ignore[override]
        return self._storage._look("pruner")

    def stop(self) -> None:
        self._storage._link.tell(StopStudy())


class RemoteTrial(Trial):
    """A trial in a cell. Beyond Optuna's: `checkpoint_dir`, `attempt`, `stop_requested` and
    `note`."""

    def __init__(self, link: Link, task: Task) -> None:
        self._link = link
        self._task = task
        self.study = RemoteStudy(link)
        self.storage = self.study._storage
        self._trial_id = task.trial._trial_id
        self._cached_frozen_trial = task.trial
        self.relative_search_space = None
        self._relative_params = None
        self._fixed_params = task.trial.system_attrs.get("fixed_params", {})

    @property
    def attempt(self) -> int:
        """1 for the first time this trial runs, 2 for the second, and so on."""
        return self._task.attempt

    @property
    def plan(self) -> dict[str, Any] | None:
        """How this attempt is to be executed, where the run plans its memory."""
        return self._task.plan

    @property
    def checkpoint_dir(self) -> Path:
        """A folder of this trial's own that all its attempts see."""
        folder = TrialFolder(Path(self._task.folder)).checkpoint
        make_folder(folder)
        return folder

    @property
    def stop_requested(self) -> bool:
        """True once the run is stopping: save what should not be lost; the next report ends."""
        return self._link.check_stop()

    @property
    def relative_params(self) -> dict[str, Any]:
        if self._relative_params is None:
            self._relative_params = self._link.ask(RelativeParams())
        return self._relative_params

    def note(self, **facts: object) -> None:
        """Say how the trial is doing, for the live view: finite numbers and short texts.

        It costs microseconds and never fails. Nothing of it is stored; the newest of each name is
        shown while the trial runs. What cannot be shown, None above all, takes the fact away. The
        view knows `encoder`, `epoch`, `epochs` and `samples_per_second`.
        """
        self._link.note(facts)

    def report(self, value: float, step: int) -> None:
        self._link.send_notes()
        super().report(value, step)
        self._link.end_if_stopped()

    def should_prune(self) -> bool:
        if len(self.study.directions) > 1:
            return super().should_prune()  # Optuna's own refusal
        self._link.end_if_stopped()
        return bool(self._link.ask(ShouldPrune()))

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        known = self._cached_frozen_trial.distributions.get(name)
        if known is not None and compatible(known, distribution):
            return self._cached_frozen_trial.params[name]
        self._link.end_if_stopped()
        internal = self._link.ask(Suggest(name, _portable(distribution)))
        value = distribution.to_external_repr(internal)
        self._cached_frozen_trial.distributions[name] = distribution
        self._cached_frozen_trial.params[name] = value
        return value


def _portable(distribution: BaseDistribution) -> Any:
    """As JSON text where that is exact, otherwise the object itself (the channel pickles it)."""
    if isinstance(distribution, CategoricalDistribution):
        plain = (type(None), bool, int, float, str)
        if not all(type(choice) in plain for choice in distribution.choices):
            return distribution
    return distribution_to_json(distribution)
