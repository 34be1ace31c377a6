"""How the search got better, and how its best trials learnt."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from supermax.records import StudyRecord, TrialRecord
from supermax.report.choosing import best_first, focus, maximizes, thinned, value_of
from supermax.report.figures import look
from supermax.report.text import number, plot_text
from supermax.words import counted

MOST_POINTS = 2000
MOST_CURVES = 8
MOST_BEHIND = 60
MOST_STEPS = 150


def history(record: StudyRecord, objective: int = 0) -> go.Figure | None:
    """Every trial's value in the order of the trials, and the best so far as a line."""
    name = look.objective(record, objective)
    complete = [t for t in record.trials if value_of(t, objective) is not None]
    pruned = [] if len(record.directions) > 1 else _pruned(record)
    lost = [t for t in record.trials if t.state == "FAIL" or _without_value(t, objective)]
    if not complete and not pruned and not lost:
        return None
    line = _best_so_far(record, complete, objective)
    keep = {number for number, _ in line}
    thin = thinned(complete, MOST_POINTS)
    points = sorted(
        {t.number: t for t in complete if t.number in keep} | {t.number: t for t in thin}
    )
    by_number = {t.number: t for t in complete}
    traces = [
        _points(record, [by_number[n] for n in points], objective),
        _pruned_points(record, thinned(pruned, MOST_POINTS)),
        _line(line, record.trials[-1].number),
        _lost(record, thinned(lost, MOST_POINTS)),
    ]
    values = [value for t in complete if (value := value_of(t, objective)) is not None]
    window = focus(values, maximizes(record, objective))
    return look.figure(
        *(trace for trace in traces if trace is not None),
        height=360,
        caption=_caption(complete, points, pruned, lost, window is not None),
        xaxis=look.count_axis(
            "trial", (t.number for t in record.trials), anchor="y2" if lost else "y"
        ),
        yaxis=look.axis(name, range=window, domain=[0.12 if lost else 0, 1]),
        yaxis2={
            "domain": [0, 0.08],
            "showgrid": False,
            "showline": False,
            "showticklabels": False,
            "ticks": "",
            "fixedrange": True,
            "range": [-1, 1],
            "visible": bool(lost),
        },
    )


def _without_value(trial: TrialRecord, objective: int) -> bool:
    """Complete, and infinite."""
    return trial.state == "COMPLETE" and value_of(trial, objective) is None


def _pruned(record: StudyRecord) -> list[tuple[TrialRecord, float]]:
    """Pruned trials with the last finite value they reported."""
    found = []
    for trial in record.of("PRUNED"):
        reported = [value for value in trial.curve.values() if math.isfinite(value)]
        if reported:
            found.append((trial, reported[-1]))
    return found


def _best_so_far(
    record: StudyRecord, trials: list[TrialRecord], objective: int
) -> list[tuple[int, float]]:
    """The trials that were better than all before; one that breaks a constraint is none."""
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
    colour, symbol = look.STATES["COMPLETE"]
    return go.Scatter(
        x=[t.number for t in trials],
        y=[look.rounded(value_of(t, objective) or 0.0) for t in trials],
        mode="markers",
        name="complete",
        marker={
            "color": colour,
            "opacity": 0.6,
            "size": 6 if len(trials) <= 500 else 4,
            "symbol": ["circle-open" if t.broken else symbol for t in trials],
        },
        hovertext=[look.about(t, record.titles, 6) for t in trials],
        hoverinfo="text",
    )


def _pruned_points(
    record: StudyRecord, pruned: list[tuple[TrialRecord, float]]
) -> go.Scatter | None:
    if not pruned:
        return None
    colour, symbol = look.STATES["PRUNED"]
    return go.Scatter(
        x=[t.number for t, _ in pruned],
        y=[look.rounded(value) for _, value in pruned],
        mode="markers",
        name="pruned, at its last report",
        marker={"color": colour, "symbol": symbol, "size": 6 if len(pruned) <= 500 else 4},
        hovertext=[
            f"{look.about(t, record.titles, 6)}<br>last report: {number(value)}"
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
        y=[look.rounded(value) for _, value in ends],
        mode="lines",
        name="best so far",
        line={"shape": "hv", "color": look.BLACK, "width": 1.6},
        hoverinfo="skip",
    )


def _lost(record: StudyRecord, lost: list[TrialRecord]) -> go.Scatter | None:
    """Failed trials have no value: they stand in a lane of their own below."""
    if not lost:
        return None
    colour, symbol = look.STATES["FAIL"]
    return go.Scatter(
        x=[t.number for t in lost],
        y=[0] * len(lost),
        yaxis="y2",
        mode="markers",
        name="failed, or no finite value",
        marker={"color": colour, "symbol": symbol, "size": 8, "line": {"width": 1.4}},
        hovertext=[look.about(t, record.titles, 6) for t in lost],
        hoverinfo="text",
    )


def _caption(
    complete: list[TrialRecord],
    points: list[int],
    pruned: list[tuple[TrialRecord, float]],
    lost: list[TrialRecord],
    focused: bool,
) -> str:
    text = "Each trial in the order it was drawn; the line is the best value so far."
    if any(t.broken for t in complete):
        text += " Hollow circles break a constraint and do not count."
    if lost:
        text += " Crosses below the axis have no value to show."
    thin = max(len(complete) - len(points), len(pruned) - MOST_POINTS, len(lost) - MOST_POINTS)
    if thin > 0:
        text += (
            f" Of {counted(len(complete), 'complete trial')} {len(points):,} are drawn, evenly "
            f"chosen, with every improvement."
        )
    if focused:
        text += " A few much worse values lie outside; double-click shows all."
    return text


def curves(record: StudyRecord, top: int = MOST_CURVES) -> go.Figure | None:
    """What the best trials reported, step by step, before what the others did."""
    if len(record.directions) > 1:
        return _losses(record, top)
    first = [t for t in best_first(record) if not t.broken and _finite(t)][:top]
    shown = {t.number for t in first}
    behind = [t for t in record.trials if t.number not in shown and _finite(t)]
    if not first and not behind:
        return _losses(record, top)
    traces = [_behind(thinned(behind, MOST_BEHIND))] if behind else []
    traces += [_curve(t, i, len(first), _finite(t)) for i, t in enumerate(first)]
    values = [v for t in [*first, *behind] for v in _finite(t).values()]
    window = focus(values, maximizes(record))
    drawn = min(len(behind), MOST_BEHIND)
    step = "epoch" if record.experiment else "step"
    best = counted(len(first), "best trial") if len(first) > 1 else "best trial"
    caption = f"What the {best} reported at each {step}"
    caption += ", the best the darkest." if len(first) > 1 else "."
    if not first:
        caption = f"What trials reported at each {step}; none has come to a value."
    elif behind:
        caption += f" Behind them, in grey, {drawn} of {counted(len(behind), 'other')}."
    if window is not None:
        caption += " A few much worse values lie outside; double-click shows all."
    return look.figure(
        *traces,
        height=360,
        caption=caption,
        xaxis=look.count_axis(step, (at for t in [*first, *behind] for at in _finite(t))),
        yaxis=look.axis(look.objective(record), range=window),
    )


def _losses(record: StudyRecord, top: int) -> go.Figure | None:
    """For trials that report nothing: the training loss an agent keeps of each."""
    first = [t for t in best_first(record) if _train_loss(t)][:top]
    if not first:
        return None
    return look.figure(
        *(_curve(t, i, len(first), _train_loss(t)) for i, t in enumerate(first)),
        height=360,
        caption=f"Training loss of the {counted(len(first), 'best trial')}, by epoch.",
        xaxis=look.count_axis("epoch", (at for t in first for at in _train_loss(t))),
        yaxis=look.axis("training loss"),
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
    colour = look.ordered(i, of)
    value = value_of(trial)
    return go.Scatter(
        x=[step for step, _ in thin],
        y=[look.rounded(v) for _, v in thin],
        mode="lines+markers" if len(thin) <= 40 else "lines",
        name=f"{trial.number}: {number(value)}",
        line={"color": colour, "dash": look.DASHES[i % len(look.DASHES)], "width": 1.8},
        marker={"symbol": look.SYMBOLS[i % len(look.SYMBOLS)], "size": 6, "color": colour},
        hovertext=[
            f"trial {trial.number}, step {step}: {number(v)}"
            + (f"<br>{plot_text(trial.encoder)}" if trial.encoder else "")
            for step, v in thin
        ],
        hoverinfo="text",
        showlegend=True,
    )


def _behind(trials: list[TrialRecord]) -> go.Scatter:
    """One trace for all, with gaps between them."""
    x: list[int | None] = []
    y: list[float | None] = []
    for trial in trials:
        for step, value in thinned(list(_finite(trial).items()), 60):
            x.append(step)
            y.append(look.rounded(value))
        x.append(None)
        y.append(None)
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        name="others",
        line={"color": look.PALE, "width": 1},
        marker={"color": look.PALE, "size": 3},
        hoverinfo="skip",
    )
