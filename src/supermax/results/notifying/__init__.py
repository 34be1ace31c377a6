"""Notifications: a command or a webhook is called when a run ends, halts or finds a better value.

run ──event──▶ Notifier ──▶ run_dir/notify.jsonl ──ReceiverThread──▶ command (stdin), URL (POST)

The run never waits for a notification, except for a limited time at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from optuna.exceptions import OptunaError
from optuna.study import Study
from sqlalchemy.exc import SQLAlchemyError

from supermax._util.files import make_private
from supermax._util.text import finite, masked, one_line
from supermax.engine import events as ev
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.run_folder import append_line
from supermax.errors import Quarantined, RunHalted, StorageFault, UserError
from supermax.results.notifying.channel import (
    BETTER,
    ENDED,
    HALTED,
    Event,
    ReceiverThread,
    addressed,
)
from supermax.results.notifying.targets import check_targets
from supermax.results.records import read_record

__all__ = ["Notifier", "check_targets", "notify_halted", "reason_of"]

INTERRUPT = "interrupt"
_MOST_TEXT = 1000


class Notifier:
    """Context of a run, and listener for its events, that notifies of them. Raises nothing."""

    def __init__(
        self,
        study: Study,
        notify: Sequence[str],
        *,
        run_dir: str | os.PathLike[str] | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        """`tell` is called with one message for each target that fails, from another thread.
        Raises UserError for targets that are neither command nor URL."""
        self._study = study
        self._run_dir = Path(run_dir) if run_dir is not None else find_location(study).run_dir
        self._outbox = self._run_dir / "notify.jsonl"
        self._channels = [
            ReceiverThread(each, self._outbox, tell) for each in check_targets(notify)
        ]
        self._best: float | None = None
        self._sign = 0
        self._closed = False

    def __enter__(self) -> Notifier:
        for channel in self._channels:
            channel.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.halted(error)
        self._close()

    def __call__(self, event: ev.Event) -> None:
        """Take an event of the run: a better value is one of the study, on this machine."""
        if isinstance(event, ev.RunStarted):
            if event.study_name != self._study.study_name:  # the race of the study
                self._sign = 0
                return
            sign = {"minimize": -1, "maximize": 1}[event.directions[0]]
            self._sign = sign if len(event.directions) == 1 else 0
            self._best = event.best[1] if event.best is not None else None
        elif isinstance(event, ev.TrialFinished) and event.state == "COMPLETE" and self._sign:
            self._compare(event)
        elif isinstance(event, ev.RunEnded) and event.summary.stopped_by == INTERRUPT:
            self.ended(INTERRUPT)  # now, because a program that got SIGTERM ends with the run

    def ended(self, stopped_by: str | None) -> None:
        """Notify that the run has ended, and wait for that for a limited time."""
        self._finish(ENDED, {"stopped_by": stopped_by})

    def halted(self, error: BaseException) -> None:
        """Notify that the run has halted, and wait for that for a limited time."""
        text = one_line(masked(str(error) or type(error).__name__, users=False), _MOST_TEXT)
        self._finish(HALTED, {"reason": reason_of(error), "message": text})

    def _finish(self, name: str, facts: Mapping[str, object]) -> None:
        """Write the event to the outbox, then send it. Without a place on the disk it is only
        sent."""
        if self._closed or not self._channels:
            return
        event = new_event(name, self._study.study_name, str(self._run_dir), facts)
        with contextlib.suppress(Exception):  # such as a study that cannot be read any more
            event |= _outcome(self._study, self._run_dir)
        with contextlib.suppress(Exception):
            make_private(self._run_dir)
            line = addressed(event, [channel.target for channel in self._channels])
            append_line(self._outbox, json.dumps(finite(line), default=str))
        for channel in self._channels:
            channel.put(event)
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            for channel in self._channels:
                channel.close()
            for channel in self._channels:
                channel.join()

    def _compare(self, event: ev.TrialFinished) -> None:
        value = event.values[0] if event.values else float("nan")
        before = self._best
        if value != value or (before is not None and self._sign * (value - before) <= 0):
            return
        self._best = value
        facts = {"trial": event.number, "value": value, "previous": before, "params": event.params}
        found = new_event(BETTER, self._study.study_name, str(self._run_dir), facts)
        for channel in self._channels:
            channel.put(found)


def reason_of(error: BaseException) -> str:
    """Return what halted a run: quarantine, failing trials, interrupt, disk, database, input or
    machine."""
    named = {
        Quarantined: "quarantine",
        StorageFault: "database",
        RunHalted: "failing trials",
        KeyboardInterrupt: "interrupt",
    }
    if type(error) in named:
        return named[type(error)]
    if isinstance(error, UserError):
        return "input"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (SQLAlchemyError, OptunaError)):
            return "database"
        if isinstance(cause, OSError):
            return "disk"
        cause = cause.__cause__ or cause.__context__
    return "machine"


def notify_halted(notify: Sequence[str], study: str, message: str) -> None:
    """Notify of a search whose process has died too often. Failures are ignored."""
    facts = {"reason": "deaths", "message": one_line(message, _MOST_TEXT)}
    for target in check_targets(notify):
        with contextlib.suppress(Exception):
            target.send(new_event(HALTED, study, None, facts))


def new_event(name: str, study: str, run_dir: str | None, facts: Mapping[str, object]) -> Event:
    now = time.time()
    return {
        "event": name,
        "id": uuid.uuid4().hex,
        "study": study,
        "host": platform.node(),
        "run_dir": run_dir,
        "at": round(now, 3),
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        **facts,
    }


def _outcome(study: Study, run_dir: Path) -> Event:
    """Return the trials by state, the best one, and the winner of the race."""
    record = read_record(study, run_dir)
    found: Event = {"trials": dict(Counter(trial.state for trial in record.trials))}
    if len(record.directions) == 1 and (best := record.front()):
        values = best[0].values or []
        found["best"] = {
            "trial": best[0].number,
            "value": values[0] if values else None,
            "params": best[0].params,
        }
    if record.race is not None and (winner := record.race.best) is not None:
        found["race"] = {"winner": winner.trial, "mean": winner.mean, "text": str(winner)}
    return found
