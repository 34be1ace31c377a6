"""Polling of a study: changed trials are read and sent to a tracker until the run has ended.

study ──due──▶ trials ──Sender──▶ Backend
          ▲                 │
          └── pause, with exponential backoff ──┘
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax._util.text import masked
from supermax.errors import SupermaxError, UserError
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.tracking import source
from supermax.results.tracking.backend import (
    FINISHED,
    KILLED,
    PREFIX,
    Backend,
    Missing,
    RequestRefused,
    Unreachable,
)
from supermax.results.tracking.content import milliseconds
from supermax.results.tracking.names import stored_text
from supermax.results.tracking.record import Record, Standing, TrackingFolder, unsent
from supermax.results.tracking.sending import Sender
from supermax.results.tracking.source import StudySource

POLL_INTERVAL = 2.0  # seconds between two reads of the study
_LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_ENDING = 1.0  # the run waits for the rest


class Lifeline(Protocol):
    """Connection to the program that asked for the study to be followed."""

    @property
    def ending(self) -> bool:
        """True once no more trials will come, so that only the rest is to be sent."""

    def wait(self, seconds: float) -> None:
        """Wait at most so long; less if `ending` changes. A sign of life."""

    def report(self, trouble: str) -> None:
        """Tell the program about trouble."""


def pause(failures: int, chance: float) -> float:
    """Return the seconds to wait after so many failures in a row: exponential backoff.

    `chance`, from 0 to 1, is the jitter: the trackers of a server that was down should not all
    come back at the same moment.
    """
    if failures == 0:
        return POLL_INTERVAL
    return float(min(_LONGEST_PAUSE, 2.0 ** min(failures - 1, 10)) * (0.5 + chance))


def due(
    trials: Sequence[FrozenTrial], record: Record, failures: Counter[int]
) -> list[FrozenTrial]:
    """Return the trials to be sent, in order. Those that failed before come after the others, so
    that one that cannot be sent does not block the rest."""
    unfinished = [
        trial
        for trial in trials
        if trial.state is not TrialState.WAITING and trial.number not in record.done
    ]
    return sorted(unfinished, key=lambda trial: (failures[trial.number], trial.number))


class Follower:
    """Reader of a study that sends its trials to a tracker."""

    def __init__(self, origin: StudySource, backend: Backend, folder: TrackingFolder) -> None:
        self._source = origin
        self._server = backend
        self._folder = folder
        self._study: Study | None = None
        self._sender: Sender | None = None
        self._failures: Counter[int] = Counter()
        self._refused: dict[int, str] = {}
        self._trials: list[FrozenTrial] = []
        self._standing = Standing()
        self.sent = 0

    def follow(self, lifeline: Lifeline) -> None:
        """Send trials until `lifeline` ends and everything is sent."""
        failures = 0
        resumed = False
        while True:
            ending = lifeline.ending  # read before the study, so that no later trial is missed
            try:
                if self.send_due(lambda: lifeline.wait(0)) and not resumed and not ending:
                    self._require_sender().resume_study()
                    resumed = True
                failures = 0
                if ending:
                    self.end_study()
                    return
            except (Unreachable, RequestRefused) as error:
                failures += 1
                self.publish_standing(str(error))
                if failures > 1:  # not for a server that restarts
                    lifeline.report(str(error).rstrip("."))
            if self._refused:
                lifeline.report(str(self.trouble).rstrip("."))
            longest = _LONGEST_PAUSE_ENDING if lifeline.ending else _LONGEST_PAUSE
            lifeline.wait(min(longest, pause(failures, random.random())))

    def send_due(self, after_each: Callable[[], None] = lambda: None) -> bool:
        """Send the trials that are due now; return False while there are none. Raises
        Unreachable."""
        self._read_study()
        if self._sender is None or not self._trials:
            return False
        try:
            self._sender.open(_start_of(self._trials))
        except Missing as error:
            raise Unreachable(str(error)) from None
        except RequestRefused as error:
            raise UserError(str(error)) from None
        for trial in source.records(self.due(), self._source.run_dir):
            if not self._sender.is_current(trial):
                self._send(self._sender, trial)
                after_each()
        self.publish_standing()
        return True

    def due(self) -> list[FrozenTrial]:
        """Return the trials to be sent that the tracker has not refused."""
        found = due(self._trials, self._require_sender().record, self._failures)
        return [trial for trial in found if trial.number not in self._refused]

    def _send(self, sender: Sender, trial: TrialRecord) -> None:
        try:
            sender.send(trial)
            self.sent += trial.number in sender.record.done
        except Missing as error:
            sender.forget_state()
            self._failures[trial.number] += 1
            raise Unreachable(str(error)) from None
        except RequestRefused as error:
            self._refused[trial.number] = str(error)
        except Unreachable:
            self._failures[trial.number] += 1
            raise
        except OSError as error:  # the record cannot be written, such as on a full disk
            raise Unreachable(f"{self._folder.path}: {error.strerror or error}") from None
        except Exception as error:  # one invalid trial must not block the others
            self._refused[trial.number] = f"{type(error).__name__}: {error}"[:200]

    def _read_study(self) -> None:
        """Read the trials. Optuna caches finished ones."""
        try:
            if self._study is None:
                self._study = source.open_tracked_study(self._source)
            self._trials = self._study.get_trials(deepcopy=False)
            if self._sender is None:
                about = source.describe_study(self._study)
                self._sender = Sender(self._server, self._folder.record(about.key), about)
        except SupermaxError:
            raise
        except Exception as error:  # such as a locked database or a server that restarts
            why = f"{type(error).__name__}: {error}"
            why = masked(" ".join(why.split()), users=False)[:200]
            raise Unreachable(f"The study cannot be read: {why}") from None

    def left(self) -> int:
        """Return the number of finished trials that are not sent yet."""
        if self._sender is None:
            return 0
        return unsent(self._trials, self._sender.record)

    def publish_standing(self, trouble: str | None = None) -> None:
        """Write the state of the tracking to its file, if it has changed."""
        notices = list(self._sender.notices) if self._sender is not None else []
        refused = [f"Trial {n} was refused: {why}" for n, why in self._refused.items()]
        message = trouble or next(iter([*refused, *notices]), None)
        now = Standing(self.sent, self.left(), message)
        if now != self._standing:
            self._standing = now
            self._folder.write_standing(now)

    @property
    def trouble(self) -> str | None:
        return self._standing.trouble

    def end_study(self) -> None:
        """Update and end the run of the study, once its trials are sent. Raises Unreachable."""
        if self._sender is None or self._study is None or not self._trials:
            return
        record = StudyRecord(
            self._study, self._folder.path, source.records(self._trials, self._source.run_dir)
        )
        unfinished = any(not trial.state.is_finished() for trial in self._trials)
        try:
            self._sender.end_study(study_tags(record), KILLED if unfinished else FINISHED)
        except RequestRefused as error:
            raise Unreachable(str(error)) from None

    def _require_sender(self) -> Sender:
        assert self._sender is not None
        return self._sender


def _start_of(trials: Sequence[FrozenTrial]) -> int:
    """Return the start of the first trial as Unix time in milliseconds."""
    starts = [t.datetime_start.timestamp() for t in trials if t.datetime_start is not None]
    return milliseconds(min(starts, default=time.time()))


def study_tags(record: StudyRecord) -> dict[str, str]:
    """Return the trials by state, the best trial, and the winner of the race."""
    states = Counter(trial.state.lower() for trial in record.trials)
    tags = {f"{PREFIX}trials": ", ".join(f"{n} {state}" for state, n in states.items())}
    if (best := record.front()) and len(record.directions) == 1:
        tags[f"{PREFIX}best.trial"] = str(best[0].number)
        tags[f"{PREFIX}best.value"] = repr((best[0].values or [0.0])[0])
    if record.race is not None and (winner := record.race.best) is not None:
        tags[f"{PREFIX}race.winner"] = str(winner.trial)
        tags[f"{PREFIX}race.mean"] = repr(winner.mean)
        tags[f"{PREFIX}race"] = str(winner)
    return {name: stored_text(value) for name, value in tags.items()}


def send_all(follower: Follower, patience: float) -> None:
    """Send all trials until none is left, or no progress was made for `patience` seconds."""
    failures, since, before = 0, time.monotonic(), -1
    while True:
        try:
            follower.send_due()
            follower.end_study()
            return
        except Unreachable as error:
            failures += 1
            follower.publish_standing(str(error))
        if follower.sent != before:
            failures, since, before = 0, time.monotonic(), follower.sent
        wait = min(_LONGEST_PAUSE_ENDING * 5, pause(failures, random.random()))
        if time.monotonic() + wait - since > patience:
            return
        time.sleep(wait)  # the server cannot notify us
