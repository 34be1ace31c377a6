"""Small pieces of text that both displays use."""

from __future__ import annotations

from collections.abc import Sequence

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


def ended_as(state: str) -> str:
    """State of a finished trial, for people: complete, pruned, failed."""
    return {"FAIL": "failed"}.get(state, state.lower())


def names(state: RunState) -> list[str]:
    """Names of the values: of their metrics, or else value; of several, value 0 and so on."""
    if state.metrics or not state.several_objectives:
        return list(map(one_line, state.metrics or ("value",)))
    return [f"value {i}" for i, _ in enumerate(state.directions)]


def named(state: RunState, values: Sequence[float]) -> str:
    """Values behind their names: macro_f1 0.454, latency 3.2."""
    if state.several_objectives and not state.metrics:
        return f"values {', '.join(map(number, values))}"
    pairs = zip(names(state), values, strict=False)
    return ", ".join(f"{name} {number(value)}" for name, value in pairs)


def evaluated(state: RunState) -> str:
    """Data that the values come from: validation, n=374; empty where it is not known."""
    if state.evaluated_on is None:
        return ""
    split, examples = state.evaluated_on
    return f"{one_line(split)}, n={examples}"


def goal(state: RunState) -> str:
    """Directions with the names of the metrics: maximize macro_f1 and minimize latency."""
    names = state.metrics or ("",) * len(state.directions)
    pairs = zip(state.directions, map(one_line, names), strict=False)
    return " and ".join(f"{direction} {name}".rstrip() for direction, name in pairs)


def best(state: RunState) -> str:
    """The best value and its trial."""
    if state.best is None:
        return "none yet"
    trial, value = state.best
    return f"{named(state, [value])} in trial {trial}"


def best_so_far(state: RunState) -> str:
    """The best trial with its direction and data, or how many trials are complete where no
    single one can be the best."""
    about = "; ".join(filter(None, [goal(state), evaluated(state)]))
    if state.several_objectives:
        complete = counted(state.states["COMPLETE"], "complete trial")
        which = about if state.metrics else f"{len(state.directions)} objectives"
        return f"{complete} in this run, {which}"
    if state.best is None:
        return best(state)
    direction = "; ".join(filter(None, [*state.directions, evaluated(state)]))
    return f"{best(state)} ({direction})"


def fault_counts(state: RunState) -> str:
    """Faults by kind, most frequent first."""
    return ", ".join(f"{count} {one_line(kind)}" for kind, count in state.faults.most_common())
