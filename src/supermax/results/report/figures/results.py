"""Pareto front of the objectives, and values by encoder."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from supermax._util.text import counted
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.choosing import (
    best_first,
    focus,
    maximizes,
    measured,
    thinned,
    value_of,
)
from supermax.results.report.figures import style
from supermax.results.report.text import plot_text

MOST_POINTS = 2000
MOST_GROUPS = 20
MOST_IN_GROUP = 300


def pareto(record: StudyRecord, first: int = 0, second: int = 1) -> go.Figure | None:
    """Return two objectives against each other, with the Pareto front.

    Unlike Optuna's front, it shows the numbers of the best trials, any number of objectives, and a
    range in which a few bad values do not flatten the others.
    """
    if len(record.directions) < 2:
        return None
    trials = [t for t in record.trials if _pair(t, first, second) is not None]
    if not trials:
        return None
    front = {t.number for t in record.front()}
    best = sorted(
        (t for t in trials if t.number in front), key=lambda t: _pair(t, first, second) or (0, 0)
    )
    rest = [t for t in trials if t.number not in front]
    drawn = thinned(rest, MOST_POINTS)
    caption = (
        f"{counted(len(best), 'trial')} on the Pareto front: none is better than another in every "
        f"objective."
    )
    if len(record.directions) > 2:
        caption += " The front is that of all objectives, projected onto two of them."
    if len(drawn) < len(rest):
        caption += f" Of the {len(rest):,} others {len(drawn):,} are shown, evenly spaced."
    windows = [
        focus([(_pair(t, first, second) or (0, 0))[i] for t in trials], maximizes(record, k))
        for i, k in enumerate((first, second))
    ]
    if any(windows):
        caption += style.OUTSIDE
    labels = [str(t.number) for t in best] if len(best) <= 25 else None
    line = "lines+" if len(record.directions) == 2 else ""
    return style.figure(
        style.points(
            _points(record, drawn, first, second, 6),
            "others",
            {"color": style.SKY, "symbol": "circle-open"},
        ),
        style.points(
            _points(record, best, first, second, 12),
            "Pareto front",
            {"color": style.VERMILLION, "symbol": "diamond", "size": 9},
            mode=f"{line}markers{'+text' if labels else ''}",
            text=labels,
            textposition="top center",
            textfont={"size": 10},
            line={"color": style.BLACK, "width": 1, "dash": "dot"},
        ),
        height=400,
        caption=caption,
        xaxis=style.axis(_named(record, first), range=windows[0]),
        yaxis=style.axis(_named(record, second), range=windows[1]),
    )


def _named(record: StudyRecord, objective: int) -> str:
    direction = "higher is better" if maximizes(record, objective) else "lower is better"
    split = "validation, " if record.on_validation(objective) else ""
    return f"{record.titles[objective]} ({split}{direction})"


def _pair(trial: TrialRecord, first: int, second: int) -> tuple[float, float] | None:
    x, y = value_of(trial, first), value_of(trial, second)
    return None if x is None or y is None else (x, y)


def _points(
    record: StudyRecord, trials: list[TrialRecord], first: int, second: int, params: int
) -> list[style.Point]:
    """Return two objectives of each trial, with `params` parameters in its hover text."""
    return [
        style.Point(style.rounded(pair[0]), pair[1], style.hover_text(t, record.titles, params))
        for t in trials
        if (pair := _pair(t, first, second)) is not None
    ]


def encoders(record: StudyRecord, objective: int = 0) -> go.Figure | None:
    """Return a box plot of values by encoder, with every trial as a point; the encoder of the
    best trial is on top."""
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
    caption = "Complete trials by encoder; a box is the interquartile range."
    if len(groups) > len(names):
        caption += f" The best {len(names)} of {len(groups)} encoders."
    if any(len(group) > MOST_IN_GROUP for group in groups.values()):
        caption += f" Of each, at most {MOST_IN_GROUP} trials are shown, evenly spaced by rank."
    return style.figure(
        *traces,
        height=90 + 56 * len(names),
        caption=caption,
        xaxis=style.axis(style.objective(record, objective), range=window),
        yaxis=style.rows_axis(
            [f"{plot_text(n, 40)} ({len(groups[n])})" for n in names],
            range=[-0.6, len(names) - 0.4],
        ),
    )


def _box(record: StudyRecord, trials: list[TrialRecord], row: int, objective: int) -> go.Box:
    drawn = thinned(trials, MOST_IN_GROUP)
    colour = style.COLOURS[row % len(style.COLOURS)]
    return go.Box(
        x=[style.rounded(value_of(t, objective) or math.nan) for t in drawn],
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
            "symbol": style.SYMBOLS[row % len(style.SYMBOLS)],
        },
        hovertext=[style.hover_text(t, record.titles, 0) for t in drawn],
        hoverinfo="text",
        hoveron="points",
        showlegend=False,
    )
