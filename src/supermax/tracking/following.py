"""A study followed: what has changed is read and sent, now and then, until there is no more.

study ──due──▶ trials ──Sender──▶ MLflow
          ▲                 │
          └── pause, longer after every failure ──┘
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.errors import SupermaxError, UserError
from supermax.records import StudyRecord, TrialRecord
from supermax.tracking import source
from supermax.tracking.content import FINISHED, KILLED, PREFIX, milliseconds
from supermax.tracking.destination import Destination
from supermax.tracking.names import text
from supermax.tracking.record import Record, Standing, TrackingFolder, unsent
from supermax.tracking.sending import Sender
from supermax.tracking.server import Missing, Refused, Server, Unreachable
from supermax.tracking.source import Source
from supermax.words import masked

POLL = 2.0  # seconds between two looks at the study
_LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_ENDING = 1.0  # somebody waits for what is left


class Lifeline(Protocol):
    """Who has asked for the study to be followed."""

    @property
    def ending(self) -> bool:
        """True once no more trials will come: send the rest."""

    def wait(self, seconds: float) -> None:
        """At most so long; less when there is something to heed."""


def pause(failures: int, chance: float) -> float:
    """Seconds after so many failures in a row, for a chance from 0 to 1: all the trackers of a
    server that was down shall not come back at the same instant."""
    if failures == 0:
        return POLL
    return float(min(_LONGEST_PAUSE, 2.0 ** min(failures - 1, 10)) * (0.5 + chance))


def due(trials: Sequence[FrozenTrial], record: Record, put_off: Counter[int]) -> list[FrozenTrial]:
    """Trials to be sent, in their order; those that failed before come after the others, so that
    one that cannot be sent does not hold up the rest."""
    wanted = [
        trial
        for trial in trials
        if trial.state is not TrialState.WAITING and trial.number not in record.done
    ]
    return sorted(wanted, key=lambda trial: (put_off[trial.number], trial.number))


class Follower:
    """A study on its way into MLflow."""

    def __init__(self, origin: Source, destination: Destination, folder: TrackingFolder) -> None:
        self._source = origin
        self._server = Server(destination)
        self._folder = folder
        self._study: Study | None = None
        self._sender: Sender | None = None
        self._put_off: Counter[int] = Counter()
        self._refused: dict[int, str] = {}
        self._trials: list[FrozenTrial] = []
        self._standing = Standing()
        self.sent = 0

    def follow(self, lifeline: Lifeline) -> None:
        """Until all is sent after `lifeline` said that no more comes."""
        failures = 0
        begun = False
        while True:
            ending = lifeline.ending  # asked before looking: what comes later is looked at again
            try:
                if self.round(lambda: lifeline.wait(0)) and not begun and not ending:
                    self._sender_now.begin_study()
                    begun = True
                failures = 0
                if ending:
                    self.end_study()
                    return
            except (Unreachable, Refused) as error:
                failures += 1
                self.stand(str(error))
            most = _LONGEST_PAUSE_ENDING if lifeline.ending else _LONGEST_PAUSE
            lifeline.wait(min(most, pause(failures, random.random())))

    def round(self, after_each: Callable[[], None] = lambda: None) -> bool:
        """Send what is due now; False while there is nothing. Raises Unreachable."""
        self._look()
        if self._sender is None or not self._trials:
            return False
        try:
            self._sender.open(_beginning(self._trials))
        except Missing as error:
            raise Unreachable(str(error)) from None
        except Refused as error:
            raise UserError(str(error)) from None
        for trial in source.records(self.due(), self._source.run_dir):
            if not self._sender.idle(trial):
                self._send(self._sender, trial)
                after_each()
        self.stand()
        return True

    def due(self) -> list[FrozenTrial]:
        assert self._sender is not None
        wanted = due(self._trials, self._sender.record, self._put_off)
        return [trial for trial in wanted if trial.number not in self._refused]

    def _send(self, sender: Sender, trial: TrialRecord) -> None:
        try:
            sender.send(trial)
            self.sent += trial.number in sender.record.done
        except Missing as error:
            sender.look_again()
            self._put_off[trial.number] += 1
            raise Unreachable(str(error)) from None
        except Refused as error:
            self._refused[trial.number] = str(error)
        except Unreachable:
            self._put_off[trial.number] += 1
            raise
        except OSError as error:  # a full disk, on which the record cannot be written
            raise Unreachable(f"{self._folder.path}: {error.strerror or error}") from None
        except Exception as error:  # one odd trial does not keep the others from being sent
            self._refused[trial.number] = f"{type(error).__name__}: {error}"[:200]

    def _look(self) -> None:
        """Optuna reads what is new or was not finished the last time."""
        try:
            if self._study is None:
                self._study = source.opened(self._source)
            self._trials = self._study.get_trials(deepcopy=False)
            if self._sender is None:
                about = source.about(self._study)
                self._sender = Sender(self._server, self._folder.record(about.key), about)
        except SupermaxError:
            raise
        except Exception as error:  # a lock, a server that restarts
            why = f"{type(error).__name__}: {error}"
            why = masked(" ".join(why.split()), users=False)[:200]
            raise Unreachable(f"The study cannot be read: {why}") from None

    def left(self) -> int:
        if self._sender is None:
            return 0
        return unsent(self._trials, self._sender.record)

    def stand(self, trouble: str | None = None) -> None:
        """Say how it goes, when that has changed."""
        notices = list(self._sender.notices) if self._sender is not None else []
        refused = [f"Trial {n} was refused: {why}" for n, why in self._refused.items()]
        words = trouble or next(iter([*refused, *notices]), None)
        now = Standing(self.sent, self.left(), words)
        if now != self._standing:
            self._standing = now
            self._folder.write_standing(now)

    @property
    def trouble(self) -> str | None:
        return self._standing.trouble

    def end_study(self) -> None:
        """What the study's own run says, once its trials are there. Raises Unreachable."""
        if self._sender is None or self._study is None or not self._trials:
            return
        record = StudyRecord(
            self._study, self._folder.path, source.records(self._trials, self._source.run_dir)
        )
        unfinished = any(not trial.state.is_finished() for trial in self._trials)
        try:
            self._sender.end_study(_standing_tags(record), KILLED if unfinished else FINISHED)
        except Refused as error:
            raise Unreachable(str(error)) from None

    @property
    def _sender_now(self) -> Sender:
        assert self._sender is not None
        return self._sender


def _beginning(trials: Sequence[FrozenTrial]) -> int:
    """Milliseconds."""
    starts = [t.datetime_start.timestamp() for t in trials if t.datetime_start is not None]
    return milliseconds(min(starts, default=time.time()))


def _standing_tags(record: StudyRecord) -> dict[str, str]:
    states = Counter(trial.state.lower() for trial in record.trials)
    tags = {f"{PREFIX}trials": ", ".join(f"{n} {state}" for state, n in states.items())}
    if (best := record.front()) and len(record.directions) == 1:
        tags[f"{PREFIX}best.trial"] = str(best[0].number)
        tags[f"{PREFIX}best.value"] = repr((best[0].values or [0.0])[0])
    return {name: text(value) for name, value in tags.items()}


def send_all(follower: Follower, patience: float) -> None:
    """Everything that is finished, now: until nothing is left, or nothing has gone on for
    `patience` seconds."""
    failures, since, before = 0, time.monotonic(), -1
    while True:
        try:
            follower.round()
            follower.end_study()
            return
        except Unreachable as error:
            failures += 1
            follower.stand(str(error))
        if follower.sent != before:
            failures, since, before = 0, time.monotonic(), follower.sent
        wait = min(_LONGEST_PAUSE_ENDING * 5, pause(failures, random.random()))
        if time.monotonic() + wait - since > patience:
            return
        time.sleep(wait)  # there is nothing to wait on but the server itself
