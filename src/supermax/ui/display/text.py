"""Texts shared by the live view, the plain lines and `supermax status`."""

from __future__ import annotations

from collections.abc import Sequence

from supermax._util.text import counted, masked, one_line
from supermax.ui.display.state import RunState

STARTING = "starting the first cell, which imports what the objective needs"


def number_text(value: float) -> str:
    return f"{value:.6g}"


def size_of(count: float | None) -> str:
    """Return bytes in short form, such as 812M or 3.1G; empty for None."""
    if count is None:
        return ""
    for unit in ("K", "M", "G"):
        count /= 1024
        if count < 999.5 and (unit != "K" or count < 99.5):
            return f"{count:.1f}{unit}" if count < 9.95 and unit == "G" else f"{count:.0f}{unit}"
    return f"{count / 1024:.1f}T"


def used_of(used: int, limit: int | None) -> str:
    """Return used and available bytes, such as 1.2/4.0G; only the used ones without a limit."""
    if limit is None:
        return size_of(used)
    part, whole = size_of(used), size_of(limit)
    return f"{part[:-1]}/{whole}" if part[-1:] == whole[-1:] else f"{part}/{whole}"


def ending(error: BaseException | None) -> str | None:
    """Return how a run ended by an exception; None without one."""
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        return "at once, by Ctrl-C"
    first = one_line(masked(str(error).partition("\n")[0]))
    return f"early: {type(error).__name__}{': ' if first else ''}{first}"


def finished_of(state: RunState) -> str:
    of = f"/{state.target}" if state.target is not None else ""
    paused = f", {len(state.paused)} paused" if state.paused else ""
    return f"{state.finished}{of} finished{paused}"


def state_text(state: str) -> str:
    """Return the state of a finished trial for display: complete, pruned or failed."""
    return {"FAIL": "failed"}.get(state, state.lower())


def objective_names(state: RunState) -> list[str]:
    """Return names of the objectives: their metrics, else `value`, or `value 0`, `value 1`."""
    if state.metrics or not state.several_objectives:
        return list(map(one_line, state.metrics or ("value",)))
    return [f"value {i}" for i, _ in enumerate(state.directions)]


def values_text(state: RunState, values: Sequence[float]) -> str:
    """Return values with their names: macro_f1 0.454, latency 3.2."""
    if state.several_objectives and not state.metrics:
        return f"values {', '.join(map(number_text, values))}"
    pairs = zip(objective_names(state), values, strict=False)
    return ", ".join(f"{name} {number_text(value)}" for name, value in pairs)


def evaluated(state: RunState) -> str:
    """Return the data that trials are evaluated on: validation, n=374; empty if unknown."""
    if state.evaluated_on is None:
        return ""
    split, examples = state.evaluated_on
    return f"{one_line(split)}, n={examples}"


def goal(state: RunState) -> str:
    """Return directions and metrics: maximize macro_f1 and minimize latency."""
    names = state.metrics or ("",) * len(state.directions)
    pairs = zip(state.directions, map(one_line, names), strict=False)
    return " and ".join(f"{direction} {name}".rstrip() for direction, name in pairs)


def best_text(state: RunState) -> str:
    """Return the best value and its trial; the winner of a race with both its values."""
    if state.winner is not None:
        trial, values = state.winner
        return f"trial {trial} won the race: {objective_names(state)[0]} {values}"
    if state.best is None:
        return "none yet"
    trial, value = state.best
    return f"{values_text(state, [value])} in trial {trial}"


def best_so_far(state: RunState) -> str:
    """Return the best trial with direction and data; for several objectives, the number of
    complete trials instead, because no single one is the best."""
    about = "; ".join(filter(None, [goal(state), evaluated(state)]))
    if state.several_objectives:
        complete = counted(state.states["COMPLETE"], "complete trial")
        which = about if state.metrics else f"{len(state.directions)} objectives"
        return f"{complete} in this run, {which}"
    if state.best is None and state.winner is None:
        return best_text(state)
    direction = "; ".join(filter(None, [*state.directions, evaluated(state)]))
    return f"{best_text(state)} ({direction})"


def fault_counts(state: RunState) -> str:
    """Return the number of faults by kind, most frequent first."""
    return ", ".join(f"{count} {one_line(kind)}" for kind, count in state.faults.most_common())
