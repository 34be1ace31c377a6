"""Optimization history, and learning curves of the best trials."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from supermax._util.text import counted
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.choosing import best_first, focus, maximizes, thinned, value_of
from supermax.results.report.figures import style
from supermax.results.report.text import number, plot_text

MOST_POINTS = 2000
MOST_CURVES = 8
MOST_BACKGROUND = 60
MOST_STEPS = 150


def history(record: StudyRecord, objective: int = 0) -> go.Figure | None:
    """Return the value of every trial in order, with the best so far as a line."""
    name = style.objective(record, objective)
    complete = [t for t in record.trials if value_of(t, objective) is not None]
    pruned = [] if len(record.directions) > 1 else _pruned(record)
    failed = [t for t in record.trials if t.state == "FAIL" or _without_value(t, objective)]
    if not complete and not pruned and not failed:
        return None
    line = _best_so_far(record, complete, objective)
    improvements = {number for number, _ in line}
    by_number = {t.number: t for t in complete}
    points = sorted(improvements | {t.number for t in thinned(complete, MOST_POINTS)})
    traces = [
        _points(record, [by_number[n] for n in points], objective),
        _pruned_points(record, thinned(pruned, MOST_POINTS)),
        _line(line, record.trials[-1].number),
        _failed_points(record, thinned(failed, MOST_POINTS)),
    ]
    values = [value for t in complete if (value := value_of(t, objective)) is not None]
    window = focus(values, maximizes(record, objective))
    return style.figure(
        *(trace for trace in traces if trace is not None),
        height=360,
        caption=_caption(complete, points, pruned, failed, window is not None),
        xaxis=style.count_axis(
            "trial", (t.number for t in record.trials), anchor="y2" if failed else "y"
        ),
        yaxis=style.axis(name, range=window, domain=[0.12 if failed else 0, 1]),
        yaxis2={
            "domain": [0, 0.08],
            "showgrid": False,
            "showline": False,
            "showticklabels": False,
            "ticks": "",
            "fixedrange": True,
            "range": [-1, 1],
            "visible": bool(failed),
        },
    )


def _without_value(trial: TrialRecord, objective: int) -> bool:
    """Return whether the trial is complete, with a value that is not finite."""
    return trial.state == "COMPLETE" and value_of(trial, objective) is None


def _pruned(record: StudyRecord) -> list[tuple[TrialRecord, float]]:
    """Return pruned trials with the last finite value they reported."""
    found = []
    for trial in record.of("PRUNED"):
        reported = [value for value in trial.curve.values() if math.isfinite(value)]
        if reported:
            found.append((trial, reported[-1]))
    return found


def _best_so_far(
    record: StudyRecord, trials: list[TrialRecord], objective: int
) -> list[tuple[int, float]]:
    """Return number and value of each trial that was better than all before. Trials that violate
    a constraint do not count."""
    sign = -1.0 if maximizes(record, objective) else 1.0
    best, found = math.inf, []
    for trial in trials:
        value = value_of(trial, objective)
        if value is not None and not trial.broken and sign * value < best:
            best = sign * value
            found.append((trial.number, value))
    return found


def _points(record: StudyRecord, trials: list[TrialRecord], objective: int) -> go.Scatter | None:
    if not trials:
        return None
    colour, symbol = style.STATES["COMPLETE"]
    return go.Scatter(
        x=[t.number for t in trials],
        y=[style.rounded(value_of(t, objective) or 0.0) for t in trials],
        mode="markers",
        name="complete",
        marker={
            "color": colour,
            "opacity": 0.6,
            "size": 6 if len(trials) <= 500 else 4,
            "symbol": ["circle-open" if t.broken else symbol for t in trials],
        },
        hovertext=[style.about(t, record.titles, 6) for t in trials],
        hoverinfo="text",
    )


def _pruned_points(
    record: StudyRecord, pruned: list[tuple[TrialRecord, float]]
) -> go.Scatter | None:
    if not pruned:
        return None
    colour, symbol = style.STATES["PRUNED"]
    return go.Scatter(
        x=[t.number for t, _ in pruned],
        y=[style.rounded(value) for _, value in pruned],
        mode="markers",
        name="pruned, at its last report",
        marker={"color": colour, "symbol": symbol, "size": 6 if len(pruned) <= 500 else 4},
        hovertext=[
            f"{style.about(t, record.titles, 6)}<br>last report: {number(value)}"
            for t, value in pruned
        ],
        hoverinfo="text",
    )


def _line(line: list[tuple[int, float]], last: int) -> go.Scatter | None:
    if not line:
        return None
    ends = [*line, (last, line[-1][1])]
    return go.Scatter(
        x=[at for at, _ in ends],
        y=[style.rounded(value) for _, value in ends],
        mode="lines",
        name="best so far",
        line={"shape": "hv", "color": style.BLACK, "width": 1.6},
        hoverinfo="skip",
    )


def _failed_points(record: StudyRecord, failed: list[TrialRecord]) -> go.Scatter | None:
    """Return failed trials, which have no value, in a lane of their own below the plot."""
    if not failed:
        return None
    colour, symbol = style.STATES["FAIL"]
    return go.Scatter(
        x=[t.number for t in failed],
        y=[0] * len(failed),
        yaxis="y2",
        mode="markers",
        name="failed, or no finite value",
        marker={"color": colour, "symbol": symbol, "size": 8, "line": {"width": 1.4}},
        hovertext=[style.about(t, record.titles, 6) for t in failed],
        hoverinfo="text",
    )


def _caption(
    complete: list[TrialRecord],
    points: list[int],
    pruned: list[tuple[TrialRecord, float]],
    failed: list[TrialRecord],
    focused: bool,
) -> str:
    text = "Value of each trial in order; the line is the best value so far."
    if any(t.broken for t in complete):
        text += " Hollow circles violate a constraint and do not count."
    if failed:
        text += " Crosses below the axis have no value."
    omitted = max(len(complete) - len(points), *(len(t) - MOST_POINTS for t in (pruned, failed)))
    if omitted > 0:
        text += (
            f" Of {counted(len(complete), 'complete trial')} {len(points):,} are shown, evenly "
            f"spaced, with every improvement."
        )
    if focused:
        text += style.OUTSIDE
    return text


def curves(record: StudyRecord, top: int = MOST_CURVES) -> go.Figure | None:
    """Return the reported values of the best trials by step, before those of the others in
    grey."""
    if len(record.directions) > 1:
        return _losses(record, top)
    first = [t for t in best_first(record) if not t.broken and _finite(t)][:top]
    shown = {t.number for t in first}
    others = [t for t in record.trials if t.number not in shown and _finite(t)]
    if not first and not others:
        return _losses(record, top)
    traces = [_background(thinned(others, MOST_BACKGROUND))] if others else []
    traces += [_curve(t, i, len(first), _finite(t)) for i, t in enumerate(first)]
    values = [v for t in [*first, *others] for v in _finite(t).values()]
    window = focus(values, maximizes(record))
    drawn = min(len(others), MOST_BACKGROUND)
    step = "epoch" if record.experiment else "step"
    best = counted(len(first), "best trial") if len(first) > 1 else "best trial"
    caption = f"Reported values of the {best} by {step}"
    caption += "; darker is better." if len(first) > 1 else "."
    if not first:
        caption = f"Reported values by {step}; no trial has a final value."
    elif others:
        caption += f" In grey: {drawn} of {counted(len(others), 'other')}."
    if window is not None:
        caption += style.OUTSIDE
    return style.figure(
        *traces,
        height=360,
        caption=caption,
        xaxis=style.count_axis(step, (at for t in [*first, *others] for at in _finite(t))),
        yaxis=style.axis(style.objective(record), range=window),
    )


def _losses(record: StudyRecord, top: int) -> go.Figure | None:
    """Return the training losses of the best trials, for trials that report no values."""
    first = [t for t in best_first(record) if _train_loss(t)][:top]
    if not first:
        return None
    return style.figure(
        *(_curve(t, i, len(first), _train_loss(t)) for i, t in enumerate(first)),
        height=360,
        caption=f"Training loss of the {counted(len(first), 'best trial')}, by epoch.",
        xaxis=style.count_axis("epoch", (at for t in first for at in _train_loss(t))),
        yaxis=style.axis("training loss"),
    )


def _train_loss(trial: TrialRecord) -> dict[int, float]:
    kept = trial.result.get("train_loss")
    values = kept if isinstance(kept, list) else []
    return {
        i: v for i, v in enumerate(values, 1) if isinstance(v, (int, float)) and math.isfinite(v)
    }


def _finite(trial: TrialRecord) -> dict[int, float]:
    return {step: value for step, value in trial.curve.items() if math.isfinite(value)}


def _curve(trial: TrialRecord, i: int, of: int, points: dict[int, float]) -> go.Scatter:
    thin = thinned(list(points.items()), MOST_STEPS)
    colour = style.ordered(i, of)
    value = value_of(trial)
    return go.Scatter(
        x=[step for step, _ in thin],
        y=[style.rounded(v) for _, v in thin],
        mode="lines+markers" if len(thin) <= 40 else "lines",
        name=f"{trial.number}: {number(value)}",
        line={"color": colour, "dash": style.DASHES[i % len(style.DASHES)], "width": 1.8},
        marker={"symbol": style.SYMBOLS[i % len(style.SYMBOLS)], "size": 6, "color": colour},
        hovertext=[
            f"trial {trial.number}, step {step}: {number(v)}"
            + (f"<br>{plot_text(trial.encoder)}" if trial.encoder else "")
            for step, v in thin
        ],
        hoverinfo="text",
        showlegend=True,
    )


def _background(trials: list[TrialRecord]) -> go.Scatter:
    """Return the curves of all these trials as one trace, with gaps between them."""
    x: list[int | None] = []
    y: list[float | None] = []
    for trial in trials:
        for step, value in thinned(list(_finite(trial).items()), 60):
            x.append(step)
            y.append(style.rounded(value))
        x.append(None)
        y.append(None)
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        name="others",
        line={"color": style.PALE, "width": 1},
        marker={"color": style.PALE, "size": 3},
        hoverinfo="skip",
    )
