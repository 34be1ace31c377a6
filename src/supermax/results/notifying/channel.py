"""Delivery of events to one target, in a thread of its own.

The end and the halt of a run are in a file before they are sent, and stay there until the target
has accepted them. So they are sent at least once, also after a kill. A better value is sent at
most every five minutes, the latest one, and not again.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from supermax._util.text import masked, one_line
from supermax.engine.storage.run_folder import append_line, read_lines
from supermax.results.notifying.targets import TIMEOUT, Receiver

ENDED, HALTED, BETTER = "ended", "halted", "better"
Event = dict[str, object]
PATIENCE = 2.5 * TIMEOUT
"""Seconds that the end of a run waits: for a delivery under way, and for that of its end."""
BETTER_INTERVAL = 300.0
"""Seconds between two notifications of better values."""
_TICK = 1.0  # seconds between two looks at a value that is held back
_PAUSES = (1.0, 3.0)  # seconds before another try


class ReceiverThread:
    """Queue of events for a target. Nothing that the target does is raised or waited for."""

    def __init__(self, target: Receiver, outbox: Path, tell: Callable[[str], None]) -> None:
        self.target = target
        self._outbox = outbox
        self._tell = tell
        self._failed = False
        self._better: Event | None = None
        self._next_better = 0.0
        self._deadline: float | None = None  # of the run's end; None: the run goes on
        self._guard = threading.Lock()
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="notifier", daemon=True)

    def start(self) -> None:
        """Start with what an earlier run could not deliver."""
        for event in undelivered(self._outbox, self.target):
            self._queue.put(event)
        self._thread.start()

    def put(self, event: Event) -> None:
        if event["event"] != BETTER:
            self._queue.put(event)
            return
        with self._guard:
            self._better = event  # the latest replaces one that is held back
        self._queue.put({})

    def close(self) -> None:
        """Let the queue end after what is in it. A better value that waits is dropped: the end of
        the run has the best one."""
        self._deadline = time.monotonic() + PATIENCE
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the queue has ended, or its time is over."""
        assert self._deadline is not None
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            self._report("it does not answer")

    def _work(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                event = self._queue.get(timeout=_TICK)
                if event is None:
                    return
                if event:
                    self._deliver(event)
            if (better := self._due_better()) is not None:
                self._try(better)

    def _due_better(self) -> Event | None:
        with self._guard:
            if self._better is None or time.monotonic() < self._next_better:
                return None
            if self._deadline is not None:
                return None
            event, self._better = self._better, None
            self._next_better = time.monotonic() + BETTER_INTERVAL
            return event

    def _deliver(self, event: Event) -> None:
        """Send an end or a halt, with some retries as long as there is time."""
        for pause in (*_PAUSES, None):
            if self._try(event):
                with contextlib.suppress(OSError):
                    append_line(self._outbox, json.dumps(delivery(event, self.target)))
                return
            if pause is None or not self._has_time(pause):
                return
            time.sleep(pause)

    def _has_time(self, pause: float) -> bool:
        return self._deadline is None or time.monotonic() + pause + TIMEOUT <= self._deadline

    def _try(self, event: Event) -> bool:
        try:
            self.target.send(event)
        except Exception as error:
            self._report(one_line(masked(str(error), users=False), 200))
            return False
        return True

    def _report(self, why: str) -> None:
        """Tell the user about the first failure."""
        if not self._failed:
            self._failed = True
            self._tell(
                f"notify: {self.target.shown} failed ({why}). The run is not affected; the next "
                f"run sends ends and halts again that were not accepted."
            )


def addressed(event: Event, targets: Sequence[Receiver]) -> Event:
    """Return an event with the targets that it is for: one that is added later does not get it."""
    return {**event, "for": [target.key for target in targets]}


def delivery(event: Event, target: Receiver) -> dict[str, object]:
    return {"delivered": event["id"], "to": target.key}


def undelivered(outbox: Path, target: Receiver) -> list[Event]:
    """Return the ends and halts of earlier runs that a target has not accepted."""
    events: dict[str, Event] = {}
    for line in read_lines(outbox):
        match line:
            case {"delivered": str(name), "to": target.key}:
                events.pop(name, None)
            case {"event": str(kind), "id": str(name), "for": list(keys), **facts} if (
                target.key in keys
            ):
                found: Event = {str(key): fact for key, fact in facts.items()}
                events[name] = {"event": kind, "id": name, **found}
    return list(events.values())
