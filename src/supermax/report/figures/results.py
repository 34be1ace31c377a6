"""What came out: objectives against each other, and encoder against encoder."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from supermax.records import StudyRecord, TrialRecord
from supermax.report.choosing import best_first, focus, maximizes, measured, thinned, value_of
from supermax.report.figures import look
from supermax.report.text import plot_text
from supermax.words import counted

MOST_POINTS = 2000
MOST_GROUPS = 20
MOST_IN_GROUP = 300


def pareto(record: StudyRecord, first: int = 0, second: int = 1) -> go.Figure | None:
    """Two objectives against each other, with the trials that no other beats in everything."""
    if len(record.directions) < 2:
        return None
    placed = [t for t in record.trials if _pair(t, first, second) is not None]
    if not placed:
        return None
    front = {t.number for t in record.front()}
    best = sorted(
        (t for t in placed if t.number in front), key=lambda t: _pair(t, first, second) or (0, 0)
    )
    rest = [t for t in placed if t.number not in front]
    drawn = thinned(rest, MOST_POINTS)
    traces = []
    if drawn:
        traces.append(_others(record, drawn, first, second))
    if best:
        traces.append(_front(record, best, first, second))
    caption = (
        f"{counted(len(best), 'trial')} on the front: none is better than another in everything."
    )
    if len(record.directions) > 2:
        caption += " The front is that of all objectives, seen in two of them."
    if len(drawn) < len(rest):
        caption += f" Of the {len(rest):,} others {len(drawn):,} are drawn, evenly chosen."
    windows = [
        focus([(_pair(t, first, second) or (0, 0))[i] for t in placed], maximizes(record, k))
        for i, k in enumerate((first, second))
    ]
    if any(windows):
        caption += " A few much worse values lie outside; double-click shows all."
    return look.figure(
        *traces,
        height=400,
        caption=caption,
        xaxis=look.axis(_named(record, first), range=windows[0]),
        yaxis=look.axis(_named(record, second), range=windows[1]),
    )


def _named(record: StudyRecord, objective: int) -> str:
    wish = "more is better" if maximizes(record, objective) else "less is better"
    split = "validation, " if record.on_validation(objective) else ""
    return f"{record.titles[objective]} ({split}{wish})"


def _pair(trial: TrialRecord, first: int, second: int) -> tuple[float, float] | None:
    x, y = value_of(trial, first), value_of(trial, second)
    return None if x is None or y is None else (x, y)


def _others(record: StudyRecord, trials: list[TrialRecord], first: int, second: int) -> go.Scatter:
    pairs = [_pair(t, first, second) or (0.0, 0.0) for t in trials]
    return go.Scatter(
        x=[look.rounded(x) for x, _ in pairs],
        y=[look.rounded(y) for _, y in pairs],
        mode="markers",
        name="others",
        marker={"color": look.SKY, "symbol": "circle-open", "size": 6},
        hovertext=[look.about(t, record.titles, 6) for t in trials],
        hoverinfo="text",
    )


def _front(record: StudyRecord, trials: list[TrialRecord], first: int, second: int) -> go.Scatter:
    pairs = [_pair(t, first, second) or (0.0, 0.0) for t in trials]
    labelled = len(trials) <= 25
    two = len(record.directions) == 2
    return go.Scatter(
        x=[look.rounded(x) for x, _ in pairs],
        y=[look.rounded(y) for _, y in pairs],
        mode=("lines+" if two else "") + "markers" + ("+text" if labelled else ""),
        name="front",
        text=[str(t.number) for t in trials] if labelled else None,
        textposition="top center",
        textfont={"size": 10},
        line={"color": look.BLACK, "width": 1, "dash": "dot"},
        marker={"color": look.VERMILLION, "symbol": "diamond", "size": 9},
        hovertext=[look.about(t, record.titles) for t in trials],
        hoverinfo="text",
    )


def encoders(record: StudyRecord, objective: int = 0) -> go.Figure | None:
    """The values by encoder: every trial a point, the middle half a box, the best on top."""
    groups: dict[str, list[TrialRecord]] = {}
    for trial in best_first(record, objective):
        if trial.encoder is not None:
            groups.setdefault(trial.encoder, []).append(trial)
    if len(groups) < 2:  # nothing to compare
        return None
    names = list(groups)[:MOST_GROUPS][::-1]  # the best one last, which is on top
    traces = [_box(record, groups[name], i, objective) for i, name in enumerate(names)]
    values = [v for t in measured(record, objective) if (v := value_of(t, objective)) is not None]
    window = focus(values, maximizes(record, objective))
    caption = "Every complete trial by its encoder; the box holds the middle half."
    if len(groups) > len(names):
        caption += f" The best {len(names)} of {len(groups)} encoders."
    if any(len(group) > MOST_IN_GROUP for group in groups.values()):
        caption += f" Of each, at most {MOST_IN_GROUP} trials are drawn, evenly chosen by rank."
    return look.figure(
        *traces,
        height=90 + 56 * len(names),
        caption=caption,
        xaxis=look.axis(look.objective(record, objective), range=window),
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": [f"{plot_text(n, 40)} ({len(groups[n])})" for n in names],
            "range": [-0.6, len(names) - 0.4],
            "showgrid": False,
            "ticks": "",
        },
    )


def _box(record: StudyRecord, trials: list[TrialRecord], row: int, objective: int) -> go.Box:
    drawn = thinned(trials, MOST_IN_GROUP)
    colour = look.COLOURS[row % len(look.COLOURS)]
    return go.Box(
        x=[look.rounded(value_of(t, objective) or math.nan) for t in drawn],
        y=[row] * len(drawn),
        orientation="h",
        boxpoints="all",
        jitter=0.5,
        pointpos=0,
        width=0.6,
        line={"color": colour, "width": 1.2},
        fillcolor="rgba(0,0,0,0.03)",
        marker={
            "color": colour,
            "size": 5,
            "opacity": 0.55,
            "symbol": look.SYMBOLS[row % len(look.SYMBOLS)],
        },
        hovertext=[look.about(t, record.titles, 0) for t in drawn],
        hoverinfo="text",
        hoveron="points",
        showlegend=False,
    )
