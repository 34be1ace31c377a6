"""Plain lines for a log file, a pipe or a terminal that cannot draw.

There is no timer here: what was held back is said when the next event comes, or at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from supermax.display import text
from supermax.display.state import RunState, stopping_words, will_retry
from supermax.engine import events as ev
from supermax.words import clock, counted, one_line, took

INTERVAL = 5.0  # seconds over which lines of one sort are counted
SAME_PER_INTERVAL = 3  # lines of one sort before the rest are only counted
TRIALS_PER_INTERVAL = 15  # lines about finished trials: three a second


@dataclass
class _Sort:
    """Lines that say the same: how many were written in this interval, how many held back."""

    since: float
    written: int = 0
    held: int = 0
    last: str = ""


class PlainDisplay(AbstractContextManager["PlainDisplay"]):
    """A listener that writes lines. A stream that fails is left alone from then on."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = RunState(clock)
        self._stream: TextIO | None = stream
        self._clock = clock
        self._sorts: dict[Hashable, _Sort] = {}

    def __call__(self, event: ev.Event) -> None:
        self.state.update(event)
        match event:
            case ev.RunStarted():
                self._write(_opening(self.state))
                if self.state.starting:
                    self._write(text.STARTING.capitalize())
            case ev.TrialFinished():
                self._flush()  # what was held back before it
                said = _finished(event, self.state)
                self._limited(ev.TrialFinished, said, TRIALS_PER_INTERVAL)
            case ev.FaultSeen() if not will_retry(event):
                self._limited((event.kind, event.decision), _fault(event))
            case ev.Notice(text=said):
                self._limited(said, said)
            case ev.CellEnded(cell=cell, note=str(note)):
                self._limited(note, f"Cell {cell}: {note}")
            case ev.RunStopping():
                self._write(f"Stopping: {stopping_words(event)}")
            case ev.RunEnded(summary=summary):
                self._flush(final=True)
                self._write(f"{'Stopped' if summary.stopped_by else 'Done'}. {summary}")
            case _:
                pass
        self._flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush(final=True)
        if self.state.started_at is not None and self.state.summary is None:
            self._write(f"The run ended early: {text.finished_of(self.state)}")

    def _limited(self, sort: Hashable, line: str, most: int = SAME_PER_INTERVAL) -> None:
        now = self._clock()
        entry = self._sorts.setdefault(sort, _Sort(now))
        if entry.written < most:
            entry.written += 1
            self._write(line)
        else:
            entry.held += 1
            entry.last = line

    def _flush(self, *, final: bool = False) -> None:
        """Say what was held back and whose interval is over."""
        now = self._clock()
        for sort, entry in list(self._sorts.items()):
            if final or now - entry.since >= INTERVAL:
                del self._sorts[sort]
                if entry.held:
                    trials = sort is ev.TrialFinished
                    self._write(entry.last + _more(entry.held - 1, trials))

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        at = clock(self.state.elapsed())
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        said = f"[supermax {at}] {one_line(line)}\n".encode(encoding, "replace").decode(encoding)
        try:
            self._stream.write(said)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def _more(count: int, trials: bool) -> str:
    """Number of lines that were held back, and why where these are of trials."""
    if not count:
        return ""
    if not trials:
        return f" (+{count:,} more)"
    limit = f"at most {TRIALS_PER_INTERVAL} lines in {INTERVAL:.0f} s"
    return f" (+{counted(count, 'more trial')}; {limit})"


def _opening(state: RunState) -> str:
    workers = counted(state.workers, "worker")
    goal = "; ".join(filter(None, [text.goal(state), text.evaluated(state)]))
    resumed = f", {counted(state.resumed, 'trial')} resumed" if state.resumed else ""
    best = f", best {text.best(state)}" if state.best is not None else ""
    where = f", run files in {state.run_dir}" if state.run_dir else ""
    return (
        f"Study {state.study_name!r} ({goal}): {text.finished_of(state)}{best}{resumed}, "
        f"{workers}{where}"
    )


def _fault(event: ev.FaultSeen) -> str:
    return (
        f"Trial {event.number}, attempt {event.attempt}: {event.kind} ({event.culprit}); "
        f"{event.decision}; {event.message}"
    )


def _finished(event: ev.TrialFinished, state: RunState) -> str:
    values = ""
    if event.values is not None:
        on = f" ({said})" if (said := text.evaluated(state)) else ""
        values = f": {text.named(state, event.values)}{on}"
    parts = [
        f"Trial {event.number} {text.ended_as(event.state)}{values} in {took(event.seconds)}",
        text.finished_of(state),
    ]
    if state.best is not None:
        parts.append(f"best {text.best(state)}")
    if state.faults:
        parts.append(counted(state.faults.total(), "fault"))
    if (eta := state.eta()) is not None and state.finished < (state.target or 0):
        parts.append(f"about {clock(eta)} left")
    return "; ".join(parts)
