"""Plain lines for a log file, a pipe or a terminal without cursor control.

Lines are rate-limited without a timer: suppressed ones are summarised when the next event comes,
or at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from supermax._util.text import clock, counted, one_line, took
from supermax.engine import events as ev
from supermax.ui.display import text
from supermax.ui.display.state import RunState, stopping_text

INTERVAL = 5.0  # seconds over which lines of one group are counted
SAME_PER_INTERVAL = 3  # lines of one group; the rest is only counted
TRIALS_PER_INTERVAL = 15  # lines about finished trials: three per second


@dataclass
class _Group:
    """Rate limit of similar lines: how many were written and suppressed in this interval."""

    since: float
    written: int = 0
    suppressed: int = 0
    last: str = ""


class PlainDisplay(AbstractContextManager["PlainDisplay"]):
    """Listener that writes lines. It stops writing once the stream has failed."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = RunState(clock)
        self._stream: TextIO | None = stream
        self._clock = clock
        self._groups: dict[Hashable, _Group] = {}

    def __call__(self, event: ev.Event) -> None:
        self.state.update(event)
        match event:
            case ev.RunStarted():
                self._write(_opening(self.state))
                if self.state.starting:
                    self._write(text.STARTING.capitalize())
            case ev.TrialFinished():
                self._flush()  # suppressed lines come before this one
                line = _finished(event, self.state)
                self._write_limited(ev.TrialFinished, line, TRIALS_PER_INTERVAL)
            case ev.FaultSeen():
                self._write_limited((event.kind, event.decision), _fault(event))
            case ev.Notice(text=notice):
                self._write_limited(notice, notice)
            case ev.CellEnded(cell=cell, note=str(note)):
                self._write_limited(note, f"Cell {cell}: {note}")
            case ev.RunStopping():
                self._write(f"Stopping: {stopping_text(event)}")
            case ev.RunEnded(summary=summary):
                self._flush(final=True)
                self._write(f"{'Done' if summary.complete else 'Stopped'}. {summary}")
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

    def _write_limited(self, key: Hashable, line: str, most: int = SAME_PER_INTERVAL) -> None:
        """Write the line, unless its group has had `most` lines in this interval."""
        now = self._clock()
        group = self._groups.setdefault(key, _Group(now))
        if group.written < most:
            group.written += 1
            self._write(line)
        else:
            group.suppressed += 1
            group.last = line

    def _flush(self, *, final: bool = False) -> None:
        """Summarise suppressed lines of groups whose interval is over, or of all at the end."""
        now = self._clock()
        for key, group in list(self._groups.items()):
            if final or now - group.since >= INTERVAL:
                del self._groups[key]
                if group.suppressed:
                    trials = key is ev.TrialFinished
                    self._write(group.last + _more(group.suppressed - 1, trials))

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        at = clock(self.state.elapsed())
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        full = f"[supermax {at}] {one_line(line)}\n".encode(encoding, "replace").decode(encoding)
        try:
            self._stream.write(full)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def _more(count: int, trials: bool) -> str:
    """Return the number of suppressed lines; for those of trials, also the limit."""
    if not count:
        return ""
    if not trials:
        return f" (+{count:,} more)"
    limit = f"at most {TRIALS_PER_INTERVAL} lines in {INTERVAL:.0f} s"
    return f" (+{counted(count, 'more trial')}; {limit})"


def _opening(state: RunState) -> str:
    workers = counted(state.workers, "worker")
    goal = "; ".join(filter(None, [text.goal(state), text.evaluated(state)]))
    resumed = f", {counted(state.resumed, 'unfinished trial')} kept" if state.resumed else ""
    best = f", best {text.best_text(state)}" if state.best is not None else ""
    where = f", run files in {state.run_dir}" if state.run_dir else ""
    return (
        f"Study {state.study_name!r} ({goal}): {text.finished_of(state)}{best}{resumed}, "
        f"{workers}{where}"
    )


def _fault(event: ev.FaultSeen) -> str:
    """Return kind, culprit, decision and message of a fault. Who the culprit is may change with
    the next attempt, and so is left out before a retry."""
    culprit = "" if event.retried else f" ({event.culprit})"
    return (
        f"Trial {event.number}, attempt {event.attempt}: {event.kind}{culprit}; "
        f"{event.decision}; {event.message}"
    )


def _finished(event: ev.TrialFinished, state: RunState) -> str:
    values = ""
    if event.values is not None:
        on = f" ({data})" if (data := text.evaluated(state)) else ""
        values = f": {text.values_text(state, event.values)}{on}"
    parts = [
        f"Trial {event.number} {text.state_text(event.state)}{values} in {took(event.seconds)}",
        text.finished_of(state),
    ]
    if state.best is not None:
        parts.append(f"best {text.best_text(state)}")
    if state.gain is not None:
        parts.append(str(state.gain))
    if state.faults:
        parts.append(f"{counted(state.faults.total(), 'fault')} in this run")
    if (eta := state.eta()) is not None and state.finished < (state.target or 0):
        parts.append(f"about {clock(eta)} left")
    return "; ".join(parts)
