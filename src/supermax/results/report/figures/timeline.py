"""Timeline of the attempts in each cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from supermax._util.attributes import CLAIM
from supermax._util.text import counted, took
from supermax.results.records import AttemptRecord, StudyRecord, TrialRecord
from supermax.results.report.figures import style
from supermax.results.report.text import moment, plot_text

MOST_BARS = 1000
MOST_ROWS = 24
_ENDS = {
    "COMPLETE": (style.BLUE, "", "complete"),
    "PRUNED": (style.ORANGE, "/", "pruned"),
    "FAIL": (style.VERMILLION, "x", "failed"),
    "fault": (style.PURPLE, "\\", "fault, retried"),
    "paused": (style.GREY, "", "paused at a rung"),
    "stopped": (style.GREY, ".", "stopped with the run"),
    "open": (style.GREEN, "-", "running, or end unknown"),
}


@dataclass(frozen=True)
class _Bar:
    trial: TrialRecord
    attempt: AttemptRecord
    start: float
    end: float
    retry: bool
    """The attempt follows one that ended by a fault, not one that was paused."""


def timeline(record: StudyRecord, now: float | None = None) -> go.Figure | None:
    """Return cells as rows and attempts as bars, with retries and faults marked. Optuna's timeline
    has a row per trial and knows neither.

    `now` is the Unix time at which bars of running attempts end. Default: the last known time.
    """
    bars = _bars(record, now)
    if not bars:
        return None
    drawn = bars[-MOST_BARS:]
    rows, cells = _rows(drawn)
    packed = not cells
    zero = min(bar.start for bar in drawn)
    unit, per = in_units(max(bar.end for bar in drawn) - zero)
    traces = [
        _bar_trace(how, [b for b in drawn if b.attempt.how == how], rows, zero, per)
        for how in _ENDS
        if any(b.attempt.how == how for b in drawn)
    ]
    faulty = [b for b in drawn if b.attempt.fault is not None]
    traces.append(
        style.points(
            [style.Point((b.end - zero) / per, rows[_key(b)], _bar_text(b)) for b in faulty],
            "fault",
            {
                "symbol": "x",
                "size": 8,
                "color": style.BLACK,
                "line": {"width": 1, "color": "#fff"},
            },
        )
    )
    count = max(rows.values()) + 1
    retries = sum(bar.retry for bar in drawn)
    caption = (
        f"Each bar is an attempt, in {'the first free row' if packed else 'the row of its cell'}; "
        f"time starts at {moment(zero)}."
    )
    if retries:
        caption += f" {counted(retries, 'retry', 'retries')} (dark outline)."
    if packed:
        own = {(b.trial.trial.system_attrs.get(CLAIM), b.attempt.cell) for b in drawn}
        caption += f" {len(own)} cells, drawn in {count} rows."
    if len(drawn) < len(bars):
        caption += f" The last {len(drawn):,} of {len(bars):,} attempts."
    return style.figure(
        *traces,
        height=110 + count * (26 if count <= 8 else 16),
        caption=caption,
        barmode="overlay",
        bargap=0.25,
        xaxis=style.axis(f"time ({unit})", rangemode="tozero"),
        yaxis=style.rows_axis(
            [str(row) for row in (cells or range(1, count + 1))],
            range=[count - 0.4, -0.6],
            **style.axis("row" if packed else "cell"),
        ),
    )


def _bars(record: StudyRecord, now: float | None) -> list[_Bar]:
    attempts = [
        (trial, attempt, before is not None and before.how == "fault")
        for trial in record.trials
        for before, attempt in zip([None, *trial.attempts], trial.attempts, strict=False)
    ]
    ends = [a.ended or a.started for _, a, _ in attempts]
    last = max([*ends, *([now] if now is not None else [])], default=0.0)
    bars = []
    for trial, attempt, retry in attempts:
        running = attempt.how == "open" and trial.state == "RUNNING"
        end = attempt.ended or (last if running else attempt.started)
        bars.append(_Bar(trial, attempt, attempt.started, max(end, attempt.started), retry))
    return sorted(bars, key=lambda bar: (bar.start, bar.trial.number, bar.attempt.number))


def _rows(bars: Sequence[_Bar]) -> tuple[dict[int, int], list[int]]:
    """Return the row of each attempt, and the cell of each row.

    With many cells, such as a fresh one for every trial, rows are not cells: each attempt goes to
    the first free row, and the list of cells is empty.
    """
    cells = sorted({bar.attempt.cell for bar in bars})
    if len(cells) <= MOST_ROWS and not _overlap(bars):
        row_of = {cell: i for i, cell in enumerate(cells)}
        return {_key(bar): row_of[bar.attempt.cell] for bar in bars}, cells
    free: list[float] = []
    rows = {}
    for bar in bars:
        row = next((i for i, until in enumerate(free) if until <= bar.start), len(free))
        free[row : row + 1] = [bar.end]
        rows[_key(bar)] = row
    return rows, []


def _key(bar: _Bar) -> int:
    return bar.trial.number * 10_000 + bar.attempt.number


def _overlap(bars: Sequence[_Bar]) -> bool:
    """Return whether attempts of one cell overlap. Cells are numbered from 1 in each run, so two
    runs at the same time would overlap."""
    busy: dict[int, float] = {}
    for bar in bars:
        if busy.get(bar.attempt.cell, -math.inf) > bar.start + 0.05:
            return True
        busy[bar.attempt.cell] = bar.end
    return False


def _bar_trace(
    how: str, bars: Sequence[_Bar], rows: Mapping[int, int], zero: float, per: float
) -> go.Bar:
    colour, pattern, name = _ENDS[how]
    return go.Bar(
        y=[rows[_key(b)] for b in bars],
        base=[round((b.start - zero) / per, 4) for b in bars],
        x=[round(max(b.end - b.start, 0.0) / per, 5) for b in bars],
        orientation="h",
        name=name,
        marker={
            "color": colour,
            "opacity": 0.75,
            "pattern": {"shape": pattern, "size": 5, "solidity": 0.3, "fillmode": "overlay"},
            "line": {
                "color": ["#222222" if b.retry else "#ffffff" for b in bars],
                "width": [1.5 if b.retry else 0.5 for b in bars],
            },
        },
        hovertext=[_bar_text(b) for b in bars],
        hoverinfo="text",
        showlegend=True,
    )


def _bar_text(bar: _Bar) -> str:
    lines = [
        f"trial {bar.trial.number}, attempt {bar.attempt.number}, cell {bar.attempt.cell}",
        f"{_ENDS[bar.attempt.how][2]} after {took(bar.end - bar.start)}",
        moment(bar.start),
    ]
    if bar.attempt.fault is not None:
        lines.append(f"{bar.attempt.fault.kind}: {bar.attempt.fault.message}")
    return "<br>".join(plot_text(line, 100) for line in lines)


def in_units(span: float) -> tuple[str, float]:
    """Return the unit for a span of seconds, and the seconds of that unit."""
    if span > 48 * 3600:
        return "d", 86400.0
    if span > 2 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if span > 120 else ("s", 1.0)
