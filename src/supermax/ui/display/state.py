"""State of a run as its events report it: counts and times, independent of any terminal.

``RunState.update`` applies one event and ignores unknown ones. The other methods are for displays
while they draw.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from supermax._util.text import counted
from supermax.engine import events as ev
from supermax.engine.gain import Gain
from supermax.engine.summary import NO_GAIN, Summary
from supermax.engine.trial.notes import Fact
from supermax.ui.display.curve import Curve
from supermax.ui.display.gauges import Readings
from supermax.ui.display.remaining import Work, remaining_seconds

RATE_WINDOW = 100  # finished trials that the rate is computed from
NOTICES_KEPT = 3
LOG_KEPT = 20
BESTS_SHOWN = 3
FACTS_KEPT = 32
RECENT_KEPT = 30
RECENT_CURVE = 48  # points of a finished trial's curve
REACHED = "the target is reached"
ENDED_ITSELF = "no further gain is expected"


@dataclass
class RunningTrial:
    """Running attempt of a trial, with its last report and notes."""

    number: int
    attempt: int
    cell: int
    since: float
    step: int | None = None
    value: float | None = None
    pid: int | None = None
    reserved: int | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    curve: Curve = field(default_factory=Curve)

    @property
    def share(self) -> float:
        """Share of its epochs that is done, 0 to 1; 0 if it notes none."""
        epoch, epochs = self.facts.get("epoch"), self.facts.get("epochs")
        if not isinstance(epoch, int | float) or not isinstance(epochs, int | float):
            return 0.0
        return min(1.0, max(0.0, epoch / epochs)) if epochs > 0 else 0.0

    def add_facts(self, facts: dict[str, Fact]) -> None:
        """Take over notes of the trial; None removes one. The oldest are dropped."""
        for name, value in facts.items():
            self.facts.pop(name, None)  # to move it to the end
            if value is not None:
                self.facts[name] = value
        while len(self.facts) > FACTS_KEPT:
            del self.facts[next(iter(self.facts))]


@dataclass(frozen=True)
class FinishedTrial:
    """Trial that finished in this run."""

    number: int
    state: str  # COMPLETE, PRUNED or FAIL
    values: tuple[float, ...]
    seconds: float
    encoder: str = ""
    curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class LogEntry:
    """Event worth showing. A repeated notice is one entry with a count."""

    at: float  # Unix time
    kind: str  # "best", "fault", "stop", "notice"
    text: str
    count: int = 1


@dataclass
class RunState:
    """State of a run up to the last event."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    study_name: str = ""
    directions: tuple[str, ...] = ()
    target: int | None = None
    workers: int = 0
    run_dir: str = ""
    resumed: int = 0
    finished: int = 0  # in the whole study
    launched: bool = False  # this run has launched a trial
    started_at: float | None = None
    ended_at: float | None = None
    states: Counter[str] = field(default_factory=Counter)  # of the trials of this run
    best: tuple[int, float] | None = None
    winner: tuple[int, str] | None = None
    """Trial that has won the race of the study, and its value with that in the search."""
    metrics: tuple[str, ...] = ()  # names of the values, one per objective; (): not named
    evaluated_on: tuple[str, int] | None = None  # split and number of examples
    running: dict[int, RunningTrial] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)  # trials between two attempts
    paused: dict[int, float | None] = field(default_factory=dict)
    """Moments at which trials paused that wait at a rung, by number; None: in an earlier run."""
    recent: deque[FinishedTrial] = field(default_factory=lambda: deque(maxlen=RECENT_KEPT))
    faults: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    last_fault: ev.FaultSeen | None = None
    notices: dict[str, int] = field(default_factory=dict)  # text: how often it came, oldest first
    noticed: dict[str, float] = field(default_factory=dict)  # text: when it came last
    out_of_service: dict[str, str] = field(default_factory=dict)  # GPU or machine: why
    log: deque[LogEntry] = field(default_factory=lambda: deque(maxlen=LOG_KEPT))
    gain: Gain | None = None  # expected of further trials; None: not estimated
    stopping: str | None = None
    ending: str | None = None  # how the run ended; None: it goes on, or that is unknown
    summary: Summary | None = None
    finish_times: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))
    """Moments at which trials of this run finished, after that of its first launch. Copies of
    results are left out."""
    others: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))
    """Moments, and numbers of trials that other runs had finished by then. The first one is the
    start of this run, or the last change of the number of their workers."""
    other_workers: int | None = None  # of the other runs on the study; None: unknown
    resumed_shares: dict[int, float] = field(default_factory=dict)
    """Share of each running trial that was done before this run, by trial number."""
    finished_resumed_shares: deque[float] = field(
        default_factory=lambda: deque(maxlen=RATE_WINDOW)
    )
    """Share of each of the last finished trials that was done before this run."""
    cells: dict[int, int] = field(default_factory=dict)  # cell: pid
    readings: Readings = field(default_factory=Readings)

    def update(self, event: ev.Event) -> None:
        """Apply an event."""
        match event:
            case ev.RunStarted():
                self._start(event)
            case ev.CellStarted(cell=cell, pid=pid):
                self.cells[cell] = pid
            case ev.TrialStarted():
                self._launch(event)
            case ev.TrialReported():
                self._report(event)
            case ev.TrialNoted(number=number, facts=facts):
                if trial := self.running.get(number):
                    trial.add_facts(facts)
                    if "epoch" in trial.facts:
                        self.resumed_shares.setdefault(
                            number, trial.share if trial.attempt > 1 else 0.0
                        )
            case ev.TrialFinished():
                self._finish(event)
            case ev.TrialPaused():
                self._pause(event)
            case ev.StudyChanged():
                self._count_others(event)
            case ev.FaultSeen():
                self._fault(event)
            case ev.Notice(text=text):
                self._notice(text)
            case ev.CellEnded(cell=cell, note=note):
                self.cells.pop(cell, None)
                if note is not None:
                    self._notice(f"Cell {cell}: {note}")
            case ev.OutOfService(place=place, why=why):
                self.out_of_service[place] = why
            case ev.GainEstimated(gain=gain):
                self.gain = gain
            case ev.RunStopping():
                self.stopping = stopping_text(event)
                self._log("stop", f"stopping: {event.reason}")
            case ev.RunEnded(summary=summary):
                self._end(summary)

    def close(self, why: str | None = None) -> None:
        """End the run, whether or not it reported its end. `why` is used only if it did not."""
        if self.ended_at is None:
            self.ended_at = self.clock()
            self.ending = why
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
        self.metrics = event.metrics
        self.evaluated_on = event.evaluated_on
        self.started_at = self.clock()
        self.finish_times.append(self.started_at)
        self.others.append((self.started_at, 0))

    def _launch(self, event: ev.TrialStarted) -> None:
        if not self.launched and len(self.finish_times) == 1:
            self.finish_times[0] = self.clock()  # the time until then is not that of trials
        self.launched = True
        self.waiting.discard(event.number)
        self.paused.pop(event.number, None)
        self.running[event.number] = RunningTrial(
            event.number,
            event.attempt,
            event.cell,
            event.at,
            pid=self.cells.get(event.cell),
            reserved=event.reserved,
        )

    def _report(self, event: ev.TrialReported) -> None:
        if trial := self.running.get(event.number):
            trial.step, trial.value = event.step, event.value
            trial.curve.add(event.value)

    def _pause(self, event: ev.TrialPaused) -> None:
        ran_here = self.running.pop(event.number, None) is not None
        self.paused.pop(event.number, None)
        if event.at_rung:
            self.paused[event.number] = self.clock() if ran_here else None

    def _count_others(self, event: ev.StudyChanged) -> None:
        """Count trials that other runs have finished: they bring the target nearer."""
        before = self.others[-1][1] if self.others else 0
        if event.workers != self.other_workers:
            self.other_workers = event.workers
            self.others.clear()
        self.others.append((self.clock(), before + max(0, event.finished - self.finished)))
        self.finished = event.finished
        if event.best is not None:
            self._compare(*event.best)

    def _finish(self, event: ev.TrialFinished) -> None:
        trial = self.running.pop(event.number, None)
        resumed_share = self.resumed_shares.pop(event.number, 0.0)
        self.recent.append(_finished(event, trial))
        self.waiting.discard(event.number)
        self.paused.pop(event.number, None)
        self.finished = event.finished
        self.states[event.state] += 1
        if not event.copied:  # a copy says nothing about the time of a trial
            self.finished_resumed_shares.append(resumed_share)
            self.finish_times.append(self.clock())
        if event.state == "COMPLETE" and event.values and len(self.directions) == 1:
            self._compare(event.number, event.values[0])

    def _compare(self, number: int, value: float) -> None:
        if math.isnan(value):
            return
        sign = -1.0 if self.directions[0] == "maximize" else 1.0
        if self.best is not None and value == self.best[1]:
            self.best = (min(number, self.best[0]), value)  # ties go to the lowest number
        elif self.best is None or sign * value < sign * self.best[1]:
            self.best = (number, value)
            self._log("best", f"trial {number} is the best so far: {self.metric} {value:.6g}")

    def _fault(self, event: ev.FaultSeen) -> None:
        if event.counted:
            self.faults[event.kind] += 1
        self.last_fault = event
        entry = f"trial {event.number}, {event.kind}; {event.decision}; {event.message}"
        self._log("fault", entry)
        trial = self.running.get(event.number)
        if trial is not None and trial.attempt == event.attempt:
            del self.running[event.number]
        if event.retried:
            self.retries += 1
            self.waiting.add(event.number)

    def _notice(self, text: str) -> None:
        count = self.notices.pop(text, 0)
        self.notices[text] = count + 1
        self.noticed[text] = self.wall()
        while len(self.notices) > NOTICES_KEPT:
            oldest = next(iter(self.notices))
            del self.notices[oldest], self.noticed[oldest]

    def _log(self, kind: str, text: str) -> None:
        self.log.append(LogEntry(self.wall(), kind, text))

    def _end(self, summary: Summary) -> None:
        self.summary = summary
        self.finished = summary.finished
        by = summary.stopped_by
        own = {None: REACHED, NO_GAIN: ENDED_ITSELF}
        self.close(own.get(by, f"stopped by {by}"))

    @property
    def metric(self) -> str:
        """Name of the first objective's values."""
        return self.metrics[0] if self.metrics else "value"

    @property
    def several_objectives(self) -> bool:
        return len(self.directions) > 1

    @property
    def starting(self) -> bool:
        """True while the first cell imports what the objective needs, which takes a while."""
        over = self.ended_at is not None or self.stopping is not None
        busy = bool(self.running or self.waiting or self.paused or self.states)
        wanted = self.target is None or self.finished < self.target
        return self.started_at is not None and wanted and not over and not busy

    def events(self) -> list[LogEntry]:
        """Return notices and other log entries, oldest first. Of the entries about a new best,
        which are frequent early in a search, only the last ones are kept."""
        bests = [event for event in self.log if event.kind == "best"][-BESTS_SHOWN:]
        others = [event for event in self.log if event.kind != "best"]
        notices = [
            LogEntry(self.noticed[text], "notice", text, count)
            for text, count in self.notices.items()
        ]
        return sorted([*others, *bests, *notices], key=lambda event: event.at)

    def memory_limit(self, trial: RunningTrial) -> int | None:
        """Return the bytes reserved for the trial, or else its share of the machine's memory;
        None if neither is known."""
        if trial.reserved is not None or self.readings.total is None:
            return trial.reserved
        return self.readings.total // max(1, self.workers)

    def elapsed(self) -> float:
        """Return the seconds since the run started, until its end at most."""
        if self.started_at is None:
            return 0.0
        now = self.clock() if self.ended_at is None else self.ended_at
        return max(0.0, now - self.started_at)

    def _running_shares(self) -> float:
        return sum(trial.share for trial in self.running.values())

    def done(self) -> float:
        """Return the number of trials done in the study: finished and paused ones, plus the shares
        of running ones. Most paused trials are never continued."""
        return self.finished + len(self.paused) + self._running_shares()

    def eta(self) -> float | None:
        """Return the estimated seconds until the target is reached; None while it is unknown."""
        over = self.ended_at is not None or self.stopping is not None
        over = over or (self.gain is not None and self.gain.over)
        if self.target is None or over or not self.finish_times:
            return None
        left = self.target - self.done()
        return remaining_seconds(left, self._own_work(), self._work_of_others())

    def _own_work(self) -> Work:
        """Return the last finished trials of this run, those that have paused meanwhile, and the
        shares of running ones. Where trials do not note their epochs, an overdue one adds to the
        time, so that an estimate grows while nothing finishes."""
        first, now = self.finish_times[0], self.clock()
        shares = self._running_shares()
        pauses = [at for at in self.paused.values() if at is not None and at >= first]
        last = max([self.finish_times[-1], *pauses])
        resumed = sum(self.resumed_shares.get(number, 0.0) for number in self.running)
        earlier = sum(self.finished_resumed_shares) + resumed
        done = len(self.finish_times) - 1 + len(pauses) + shares - earlier
        seconds = now - first
        if not shares and done > 0:
            seconds = max(last - first, seconds * done / (done + 1))
        return Work(done, seconds, max(1, self.workers), with_shares=shares > 0)

    def _work_of_others(self) -> Work:
        if not self.others:
            return Work(0.0, 0.0, self.other_workers)
        (first, before), (_, after) = self.others[0], self.others[-1]
        return Work(after - before, self.clock() - first, self.other_workers)


def _finished(event: ev.TrialFinished, trial: RunningTrial | None) -> FinishedTrial:
    """Return the entry of a finished trial. `trial` is None if it ended in an earlier run or by
    a fault."""
    encoder = str(trial.facts.get("encoder", "")) if trial else ""
    curve = trial.curve.thinned(RECENT_CURVE) if trial else ()
    values = event.values or ()
    return FinishedTrial(event.number, event.state, values, event.seconds, encoder, curve)


def stopping_text(event: ev.RunStopping) -> str:
    if not event.running:
        return event.reason
    return (
        f"{event.reason}; {counted(event.running, 'trial')} may run to the next report, 30 s at "
        f"most; press Ctrl-C again to end at once"
    )
