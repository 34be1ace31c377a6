"""What a display knows about a run: counts and times, apart from any terminal.

``RunState.update`` takes one event in and never fails on one it does not know. The rest are
questions a display asks while it draws.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from supermax.engine import events as ev
from supermax.engine.summary import Summary

RATE_WINDOW = 100  # how many of the last finished trials the rate is taken from
NOTICES_KEPT = 3


@dataclass
class RunningTrial:
    """One attempt that is under way, and the last thing it reported."""

    number: int
    attempt: int
    cell: int
    since: float
    step: int | None = None
    value: float | None = None


@dataclass
class RunState:
    """The run so far, as its events told it."""

    clock: Callable[[], float] = time.monotonic
    study_name: str = ""
    directions: tuple[str, ...] = ()
    target: int | None = None
    workers: int = 0
    run_dir: str = ""
    resumed: int = 0
    finished: int = 0  # in the whole study
    started_at: float | None = None
    ended_at: float | None = None
    states: Counter[str] = field(default_factory=Counter)  # of the trials of this run
    best: tuple[int, float] | None = None
    running: dict[int, RunningTrial] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)  # trials between two attempts
    faults: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    last_fault: ev.FaultSeen | None = None
    notices: dict[str, int] = field(default_factory=dict)  # text: how often it came, oldest first
    stopping: str | None = None
    summary: Summary | None = None
    finish_times: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))

    def update(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._start(event)
            case ev.TrialStarted(number=number):
                self.waiting.discard(number)
                self.running[number] = RunningTrial(number, event.attempt, event.cell, event.at)
            case ev.TrialReported():
                if trial := self.running.get(event.number):
                    trial.step, trial.value = event.step, event.value
            case ev.TrialFinished():
                self._finish(event)
            case ev.TrialPaused(number=number):
                self.running.pop(number, None)
            case ev.FaultSeen():
                self._fault(event)
            case ev.Notice(text=text):
                self._notice(text)
            case ev.CellEnded(cell=cell, note=str(note)):
                self._notice(f"Cell {cell}: {note}")
            case ev.RunStopping():
                self.stopping = stopping_words(event)
            case ev.RunEnded(summary=summary):
                self._end(summary)
            case _:
                pass

    def close(self) -> None:
        """Nothing more will come, whether or not the run said that it ended."""
        if self.ended_at is None:
            self.ended_at = self.clock()
        self.running.clear()
        self.waiting.clear()

    def _start(self, event: ev.RunStarted) -> None:
        self.study_name = event.study_name
        self.directions = event.directions
        self.target = event.target
        self.workers = event.workers
        self.run_dir = event.run_dir
        self.resumed = event.resumed
        self.finished = event.finished
        self.best = event.best
        self.started_at = self.clock()
        self.finish_times.append(self.started_at)

    def _finish(self, event: ev.TrialFinished) -> None:
        self.running.pop(event.number, None)
        self.waiting.discard(event.number)
        self.finished = event.finished
        self.states[event.state] += 1
        self.finish_times.append(self.clock())
        if event.state == "COMPLETE" and event.values and len(self.directions) == 1:
            self._compare(event.number, event.values[0])

    def _compare(self, number: int, value: float) -> None:
        if math.isnan(value):
            return
        sign = -1.0 if self.directions[0] == "maximize" else 1.0
        if self.best is None or sign * value < sign * self.best[1]:
            self.best = (number, value)

    def _fault(self, event: ev.FaultSeen) -> None:
        self.faults[event.kind] += 1
        self.last_fault = event
        trial = self.running.get(event.number)
        if trial is not None and trial.attempt == event.attempt:
            del self.running[event.number]
        if will_retry(event):
            self.retries += 1
            self.waiting.add(event.number)

    def _notice(self, text: str) -> None:
        count = self.notices.pop(text, 0)
        self.notices[text] = count + 1
        while len(self.notices) > NOTICES_KEPT:
            del self.notices[next(iter(self.notices))]

    def _end(self, summary: Summary) -> None:
        self.summary = summary
        self.finished = summary.finished
        self.close()

    @property
    def several_objectives(self) -> bool:
        return len(self.directions) > 1

    def elapsed(self) -> float:
        """Seconds since the run started; the clock stands still once it has ended."""
        if self.started_at is None:
            return 0.0
        now = self.clock() if self.ended_at is None else self.ended_at
        return max(0.0, now - self.started_at)

    def eta(self) -> float | None:
        """Seconds until the target is reached, or None while nobody can tell.

        The rate is that of the last finished trials. A trial that is overdue counts against it,
        so the estimate grows while nothing finishes instead of standing still.
        """
        count = len(self.finish_times) - 1
        if self.target is None or self.ended_at is not None or self.stopping is not None:
            return None
        if count < max(1, self.workers):  # the first ones come as a volley and say little
            return None
        first, last = self.finish_times[0], self.finish_times[-1]
        each = max((last - first) / count, (self.clock() - first) / (count + 1))
        return max(0, self.target - self.finished) * each


def will_retry(fault: ev.FaultSeen) -> bool:
    """Whether the trial gets another attempt after this fault."""
    return fault.decision.startswith("retry")


def stopping_words(event: ev.RunStopping) -> str:
    if not event.running:
        return event.reason
    trials = "trial" if event.running == 1 else "trials"
    return (
        f"{event.reason}; {event.running} {trials} may come to the next report, 30 s at most; "
        f"Ctrl-C again ends at once"
    )
