"""Tables of running and finished trials that fit the width of the terminal.

On a narrow screen, less important columns are dropped first; on a wide one, names, curves and
bars grow. Lines are composed here, because rich takes milliseconds to lay out such a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.text import Text

from supermax._util.text import clock, one_line, took
from supermax.ui.display import text
from supermax.ui.display.charts import bar, cut, spark
from supermax.ui.display.state import FinishedTrial, RunningTrial, RunState

GAP = 2
KNOWN = ("encoder", "epoch", "epochs", "samples_per_second", "memory")  # have their own column
_RED_FROM, _YELLOW_FROM = 0.9, 0.75  # shares of a trial's memory limit
_STATES = {"PRUNED": "yellow", "FAIL": "red"}
_CURVE_WIDTH = 48  # terminal cells of a curve on a wide screen
Trial = TypeVar("Trial", RunningTrial, FinishedTrial)


@dataclass
class Column(Generic[Trial]):
    """Column of a table of trials."""

    title: str
    rank: int
    """Order in which columns are dropped on a narrow screen: the highest first."""
    make: Callable[[Trial, int], str]
    """Text of a trial for a width in terminal cells."""
    least: int
    most: int
    style: Callable[[Trial], str] = lambda _: ""
    right: bool = True
    """Alignment to the right."""
    width: int = 0


def trial_lines(state: RunState, width: int, rows: int, ascii: bool) -> list[Text]:
    """Return a header, at most `rows` lines of running trials, and how many more there are."""
    trials = sorted(state.running.values(), key=lambda trial: trial.number)
    shown = trials if len(trials) <= rows else trials[: max(1, rows - 1)]
    lines = _drawn(columns_of(state, shown, ascii), shown, width, ascii)
    if len(trials) > len(shown):
        lines.append(Text(f"and {len(trials) - len(shown)} more running", style="dim"))
    return lines


def finished_table(state: RunState, width: int, rows: int, ascii: bool) -> list[Text]:
    """Return a header and the last finished trials, newest first, in at most `rows` lines."""
    shown = list(state.recent)[::-1][: max(0, rows - 1)]
    return _drawn(_columns_of_finished(state, shown, ascii), shown, width, ascii) if shown else []


def _drawn(
    columns: Sequence[Column[Trial]], trials: Sequence[Trial], width: int, ascii: bool
) -> list[Text]:
    """Return a header and a line for each trial."""
    columns = fitting(columns, width)
    lines = [Text("", style="dim")]
    for column in columns:
        _append(lines[0], column, cut(column.title, column.width, ascii), "")
    for trial in trials:
        line = Text("")
        for column in columns:
            cell = cut(one_line(column.make(trial, column.width)), column.width, ascii)
            _append(line, column, cell, column.style(trial))
        lines.append(line)
    for line in lines:
        line.rstrip()
    return lines


def _append(line: Text, column: Column[Trial], cell: str, style: str) -> None:
    if line.plain:
        line.append(" " * GAP)
    blank = " " * (column.width - cell_len(cell))
    if column.right:
        line.append(blank)
    line.append(cell, style)
    if not column.right:
        line.append(blank)


def fitting(columns: Sequence[Column[Trial]], width: int) -> list[Column[Trial]]:
    """Return the columns that fit into `width` together, widened to fill it."""
    kept = list(columns)
    while len(kept) > 1 and _needed(kept) > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    for column in kept:
        column.width = min(column.least, width)
    spare = width - _needed(kept)
    while spare > 0 and (growing := [c for c in kept if c.width < c.most]):
        for column in growing[:spare]:
            column.width += 1
        spare -= len(growing[:spare])
    return kept


def _needed(columns: Sequence[Column[Trial]]) -> int:
    return sum(column.least for column in columns) + GAP * (len(columns) - 1)


def columns_of(
    state: RunState, trials: Sequence[RunningTrial], ascii: bool
) -> list[Column[RunningTrial]]:
    """Return the columns that are not empty for these trials, from left to right."""
    now = state.clock()
    columns: list[Column[RunningTrial]] = []

    def add(title: str, rank: int, make: Callable[[RunningTrial], str], least: int) -> None:
        """Add a column as wide as its content, and at least `least`, so that it does not resize
        while values grow. An empty column is left out."""
        longest = max([cell_len(make(trial)) for trial in trials], default=0)
        if longest:
            size = max(least, longest, len(title))
            columns.append(Column(title, rank, lambda trial, _: make(trial), size, size))

    add("trial", 0, lambda trial: str(trial.number), 5)
    add("try", 9, lambda trial: str(trial.attempt), 3)
    add("cell", 11, lambda trial: str(trial.cell), 4)
    if names := [_fact(trial, "encoder") for trial in trials if "encoder" in trial.facts]:
        longest = max(map(cell_len, names))
        columns.append(
            Column(
                "encoder", 5, lambda trial, _: _fact(trial, "encoder"),
                min(max(longest, 7), 14), max(longest, 7), right=False,
            )
        )  # fmt: skip
    counted = any("epoch" in trial.facts or "epochs" in trial.facts for trial in trials)
    add("epoch" if counted else "step", 3, progress, 7)
    if any(trial.curve.points for trial in trials):
        columns.append(
            Column(
                "curve", 6, lambda trial, width: spark(trial.curve.points, width, ascii),
                8, _CURVE_WIDTH, style=lambda _: "cyan", right=False,
            )
        )  # fmt: skip
    values = [text.number_text(trial.value) for trial in trials if trial.value is not None]
    if values or (state.metrics and not state.several_objectives):
        name = one_line(state.metric)
        least = min(max(9, cell_len(name)), 14)
        columns.append(Column(name, 1, _value, least, max(least, *map(len, [name, *values]))))
    add("samples/s", 7, lambda trial: _rate(trial.facts.get("samples_per_second")), 9)
    columns += _memory(state, trials, ascii)
    add("gpu memory", 8, lambda trial: text.size_of(_on_device(state, trial)), 8)
    add("elapsed", 2, lambda trial: clock(now - trial.since), 7)
    if others := [noted for trial in trials if (noted := _others(trial))]:
        longest = max(map(cell_len, others))
        columns.append(
            Column("notes", 10, lambda trial, _: _others(trial), 16, longest, right=False)
        )
    return columns


def _columns_of_finished(
    state: RunState, trials: Sequence[FinishedTrial], ascii: bool
) -> list[Column[FinishedTrial]]:
    """Return the columns of the table of finished trials, from left to right."""
    columns: list[Column[FinishedTrial]] = [
        Column("finished", 0, lambda trial, _: str(trial.number), 8, 8),
        Column(
            "state", 2, lambda trial, _: text.state_text(trial.state), 8, 8,
            style=lambda trial: _STATES.get(trial.state, ""), right=False,
        ),
    ]  # fmt: skip
    if longest := max((cell_len(one_line(trial.encoder)) for trial in trials), default=0):
        columns.append(
            Column(
                "encoder", 4, lambda trial, _: trial.encoder,
                min(max(longest, 7), 14), max(longest, 7), right=False,
            )
        )  # fmt: skip
    if any(trial.curve for trial in trials):
        columns.append(
            Column(
                "curve", 5, lambda trial, width: spark(trial.curve, width, ascii),
                8, _CURVE_WIDTH, style=lambda _: "cyan", right=False,
            )
        )  # fmt: skip
    for place, name in enumerate(text.objective_names(state)):
        size = min(max(9, cell_len(name)), 14)
        columns.append(Column(name, 1 + 5 * bool(place), _value_at(place), size, max(size, 12)))
    columns.append(Column("took", 3, lambda trial, _: took(trial.seconds), 8, 8))
    return columns


def _value_at(index: int) -> Callable[[FinishedTrial, int], str]:
    return lambda trial, width: (
        _digits(trial.values[index], width) if index < len(trial.values) else ""
    )


def progress(trial: RunningTrial) -> str:
    """Return epochs, such as 3.4/10, where the trial notes them; otherwise the last step."""
    epoch, epochs = trial.facts.get("epoch"), trial.facts.get("epochs")
    if epoch is None and epochs is not None and trial.step is None:
        epoch = 0  # it is still loading data and weights
    if isinstance(epoch, str) or epoch is None:
        return "" if trial.step is None else str(trial.step)
    done = f"{epoch:.1f}" if isinstance(epoch, float) else str(epoch)
    return done if epochs is None else f"{done}/{_shown(epochs)}"


def _memory(
    state: RunState, trials: Sequence[RunningTrial], ascii: bool
) -> list[Column[RunningTrial]]:
    """Return a column of used memory and its limit: the trial's reservation, or else its share of
    the machine. Used is what the trial notes itself where it has a reservation, otherwise the
    resident memory of its cell."""
    resident = state.readings.resident

    def used_by(trial: RunningTrial) -> int | None:
        noted = trial.facts.get("memory") if trial.reserved is not None else None
        return int(noted) if isinstance(noted, (int, float)) else resident.get(trial.pid or 0)

    def share(trial: RunningTrial) -> float:
        used, limit = used_by(trial), state.memory_limit(trial)
        return used / limit if used is not None and limit else 0.0

    def make(trial: RunningTrial, width: int) -> str:
        used, limit = used_by(trial), state.memory_limit(trial)
        if used is None:
            return ""
        numbers = text.used_of(used, limit)
        room = width - len(numbers) - 1
        return f"{bar(share(trial), room, ascii)} {numbers}" if limit and room > 0 else numbers

    def style(trial: RunningTrial) -> str:
        part = share(trial)
        return "red" if part >= _RED_FROM else "yellow" if part >= _YELLOW_FROM else "green"

    if not any(trial.pid in resident for trial in trials):
        return []
    return [Column("memory", 4, make, 15, 27, style=style)]


def _on_device(state: RunState, trial: RunningTrial) -> int | None:
    return state.readings.on_device.get(trial.pid or 0)


def _value(trial: RunningTrial, width: int) -> str:
    return "" if trial.value is None else _digits(trial.value, width)


def _digits(value: float, width: int) -> str:
    """Return a number with as many digits as fit, at most 6."""
    candidates = [f"{value:.{digits}g}" for digits in (6, 5, 4, 3, 2, 1)]
    return next((number for number in candidates if len(number) <= width), candidates[-1])


def _rate(value: object) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def _others(trial: RunningTrial) -> str:
    """Return the notes of a trial that have no column of their own."""
    notes = [f"{name}={_shown(value)}" for name, value in trial.facts.items() if name not in KNOWN]
    return one_line(" ".join(notes))


def _fact(trial: RunningTrial, name: str) -> str:
    return one_line(_shown(trial.facts.get(name)))


def _shown(value: object) -> str:
    if value is None:
        return ""
    return text.number_text(value) if isinstance(value, float) else str(value)
