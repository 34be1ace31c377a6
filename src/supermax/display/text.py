"""Small pieces of text that both displays use."""

from __future__ import annotations

from supermax.display.state import RunState
from supermax.words import counted, masked, one_line

STARTING = "starting the first cell, which loads what the objective needs"


def number(value: float) -> str:
    return f"{value:.6g}"


def size(count: float | None) -> str:
    """Bytes where room is scarce: 812M, 3.1G."""
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
    first = one_line(masked(str(error).partition("\n")[0]))
    return f"early: {type(error).__name__}{': ' if first else ''}{first}"


def finished_of(state: RunState) -> str:
    of = f"/{state.target}" if state.target is not None else ""
    return f"{state.finished}{of} finished"


def best_so_far(state: RunState) -> str:
    """The best trial, or how many are complete where no single one can be the best."""
    if state.several_objectives:
        complete = counted(state.states["COMPLETE"], "complete trial")
        return f"{complete} in this run, {len(state.directions)} objectives"
    if state.best is None:
        return "none yet"
    trial, value = state.best
    return f"{number(value)} in trial {trial} ({' and '.join(state.directions)})"


def fault_counts(state: RunState) -> str:
    """Faults by kind, most frequent first."""
    return ", ".join(f"{count} {one_line(kind)}" for kind, count in state.faults.most_common())
