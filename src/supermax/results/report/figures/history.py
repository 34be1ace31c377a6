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
_LANE = {
    "domain": [0, 0.08],
    "showgrid": False,
    "showline": False,
    "showticklabels": False,
    "ticks": "",
    "fixedrange": True,
    "range": [-1, 1],
}
"""Axis of failed trials, which have no value: a lane of their own below the plot."""


def history(record: StudyRecord, objective: int = 0) -> go.Figure | None:
    """Return the value of every trial in order, with the best so far as a line.

    Unlike Optuna's history, it shows pruned trials at their last report, failed trials, and a
    range in which a few bad values do not flatten the others.
    """
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
    few = len(points) <= 500
    traces = [
        style.points(
            (
                _point(record, t, value_of(t, objective) or 0.0)
                for t in (by_number[n] for n in points)
            ),
            "complete",
            style.state_marker(
                "COMPLETE",
                opacity=0.6,
                size=6 if few else 4,
                symbol=["circle-open" if by_number[n].broken else "circle" for n in points],
            ),
        ),
        style.points(
            (
                _point(record, t, value, f"<br>last report: {number(value)}")
                for t, value in thinned(pruned, MOST_POINTS)
            ),
            "pruned, at its last report",
            style.state_marker("PRUNED", size=6 if len(pruned) <= 500 else 4),
        ),
        _line(line, record.trials[-1].number),
        style.points(
            (_point(record, t, 0.0) for t in thinned(failed, MOST_POINTS)),
            "failed, or no finite value",
            style.state_marker("FAIL", size=8, line={"width": 1.4}),
            yaxis="y2",
        ),
    ]
    values = [value for t in complete if (value := value_of(t, objective)) is not None]
    window = focus(values, maximizes(record, objective))
    return style.figure(
        *traces,
        height=360,
        caption=_caption(complete, points, pruned, failed, window is not None),
        xaxis=style.count_axis(
            "trial", (t.number for t in record.trials), anchor="y2" if failed else "y"
        ),
        yaxis=style.axis(name, range=window, domain=[0.12 if failed else 0, 1]),
        yaxis2=_LANE | {"visible": bool(failed)},
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


def _point(record: StudyRecord, trial: TrialRecord, value: float, more: str = "") -> style.Point:
    return style.Point(trial.number, value, style.hover_text(trial, record.titles, 6) + more)


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
    """Return the reported values of the best trials by step, before those of the others in grey.
    Optuna's plot draws all trials alike."""
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


def _curve(trial: TrialRecord, i: int, of: int, points: dict[int, float]) -> go.Scatter | None:
    thin = thinned(list(points.items()), MOST_STEPS)
    colour = style.ordered(i, of)
    encoder = f"<br>{plot_text(trial.encoder)}" if trial.encoder else ""
    return style.points(
        (
            style.Point(at, v, f"trial {trial.number}, step {at}: {number(v)}{encoder}")
            for at, v in thin
        ),
        f"{trial.number}: {number(value_of(trial))}",
        {"symbol": style.SYMBOLS[i % len(style.SYMBOLS)], "color": colour},
        mode="lines+markers" if len(thin) <= 40 else "lines",
        line={"color": colour, "dash": style.DASHES[i % len(style.DASHES)], "width": 1.8},
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
