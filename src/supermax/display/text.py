"""Small pieces of text that both displays use."""

from __future__ import annotations

import math

from supermax.display.state import RunState

LONGEST = 1000  # an exception may say megabytes
STARTING = "starting the first cell, which loads what the objective needs"


def clean(text: str) -> str:
    """The text on one line, with nothing in it that could move the cursor or fail to print."""
    printable = "".join(char if char.isprintable() else " " for char in text[:LONGEST])
    return " ".join(printable.split()) + ("..." if len(text) > LONGEST else "")


def duration(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float) -> str:
    return f"{value:.6g}"


def size(count: float | None) -> str:
    """Bytes as people say them: 812M, 3.1G."""
    if count is None:
        return ""
    for unit in ("K", "M", "G"):
        count /= 1024
        if count < 999.5 and (unit != "K" or count < 99.5):
            return f"{count:.1f}{unit}" if count < 9.95 and unit == "G" else f"{count:.0f}{unit}"
    return f"{count / 1024:.1f}T"


def of(used: int, limit: int | None) -> str:
    """1.2/4.0G; the unit once where it is the same."""
    if limit is None:
        return size(used)
    part, whole = size(used), size(limit)
    return f"{part[:-1]}/{whole}" if part[-1:] == whole[-1:] else f"{part}/{whole}"


def ending(error: BaseException | None) -> str | None:
    """How a run ended that did not say so itself."""
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        return "at once, by Ctrl-C"
    first = clean(str(error).partition("\n")[0])
    return f"early: {type(error).__name__}{': ' if first else ''}{first}"


def plural(count: int, thing: str, things: str | None = None) -> str:
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def finished_of(state: RunState) -> str:
    of = f"/{state.target}" if state.target is not None else ""
    return f"{state.finished}{of} finished"


def best_so_far(state: RunState) -> str:
    """The best trial, or how many are complete where no single one can be the best."""
    if state.several_objectives:
        complete = plural(state.states["COMPLETE"], "complete trial")
        return f"{complete} in this run, {len(state.directions)} objectives"
    if state.best is None:
        return "none yet"
    trial, value = state.best
    return f"{number(value)} in trial {trial} ({' and '.join(state.directions)})"


def fault_counts(state: RunState) -> str:
    """Faults by kind, most frequent first."""
    return ", ".join(f"{count} {clean(kind)}" for kind, count in state.faults.most_common())
