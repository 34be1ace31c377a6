"""How the run went: speed and memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import plotly.graph_objects as go

from supermax.records import StudyRecord, TrialRecord
from supermax.report.choosing import thinned
from supermax.report.figures import look
from supermax.report.figures.timeline import in_units
from supermax.report.text import real, size
from supermax.words import counted, took

MOST_POINTS = 2000
BINS = 40
FEWEST = 10
"""Finished trials below which a rate over time is chance."""


def throughput(record: StudyRecord) -> go.Figure | None:
    """Finished trials per hour, over time."""
    ends = sorted(
        t.ended
        for t in record.trials
        if t.ended is not None and t.trial.state.is_finished() and t.origin is None
    )
    starts = [t.started for t in record.trials if t.started is not None and t.origin is None]
    if len(ends) < FEWEST or not starts:
        return None
    zero, span = min(starts), max(ends) - min(starts)
    if span <= 0:
        return None
    unit, per = in_units(span)
    bins = min(BINS, max(2, len(ends) // 2))
    width = span / bins
    counts = [0] * bins
    for end in ends:
        counts[min(int((end - zero) / width), bins - 1)] += 1
    rates = [count / width * 3600 for count in counts]
    return look.figure(
        go.Bar(
            x=[round((i + 0.5) * width / per, 4) for i in range(bins)],
            y=[look.rounded(rate) for rate in rates],
            marker={"color": look.BLUE, "opacity": 0.75},
            hovertext=[f"{counted(c, 'trial')} in {took(width)}" for c in counts],
            hoverinfo="text",
            showlegend=False,
        ),
        height=260,
        caption=(
            f"Finished trials per hour, in steps of {took(width)}; "
            f"{len(ends) / span * 3600:.3g} per hour over all."
        ),
        bargap=0.1,
        xaxis=look.axis(f"time ({unit})"),
        yaxis=look.axis("trials per hour", rangemode="tozero"),
    )


def durations(record: StudyRecord) -> go.Figure | None:
    """Seconds of each trial's last attempt, with the median of its neighbours."""
    timed = [(t, s) for t in record.trials if (s := real(t.seconds)) is not None]
    if not timed:
        return None
    drawn = thinned(timed, MOST_POINTS)
    traces = [
        go.Scatter(
            x=[t.number for t, _ in group],
            y=[look.rounded(s) for _, s in group],
            mode="markers",
            name=state.lower(),
            marker={
                "color": look.STATES[state][0],
                "symbol": look.STATES[state][1],
                "size": 5,
                "opacity": 0.7,
            },
            hovertext=[f"trial {t.number}: {took(s)}" for t, s in group],
            hoverinfo="text",
        )
        for state in ("COMPLETE", "PRUNED", "FAIL")
        if (group := [(t, s) for t, s in drawn if t.state == state])
    ]
    if len(timed) >= 10:
        traces.append(_running_median(timed))
    wide = max(s for _, s in timed) > 20 * max(min(s for _, s in timed), 1e-3)
    return look.figure(
        *traces,
        height=260,
        caption=f"Half of the trials took {took(median(s for _, s in timed))} or less.",
        xaxis=look.count_axis("trial", (t.number for t, _ in timed)),
        yaxis=look.axis("time (s)", type="log" if wide else "linear"),
    )


def _running_median(timed: Sequence[tuple[TrialRecord, float]]) -> go.Scatter:
    width = max(5, len(timed) // 25)
    middles = thinned(range(len(timed)), 120)
    return go.Scatter(
        x=[timed[i][0].number for i in middles],
        y=[
            look.rounded(median(s for _, s in timed[max(0, i - width) : i + width + 1]))
            for i in middles
        ],
        mode="lines",
        name="running median",
        line={"color": look.BLACK, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def speed(record: StudyRecord) -> go.Figure | None:
    """Samples a second, for trials that say so."""
    found = [
        (t, rate)
        for t in record.trials
        for rate in [real(t.result.get("samples_per_second"))]
        if rate is not None
    ]
    if not found:
        return None
    middle = median(rate for _, rate in found)
    return look.figure(
        go.Scatter(
            x=[t.number for t, _ in found],
            y=[look.rounded(rate) for _, rate in found],
            mode="markers",
            marker={"color": look.GREEN, "symbol": "square", "size": 5},
            hovertext=[f"trial {t.number}: {rate:.3g} samples per second" for t, rate in found],
            hoverinfo="text",
            showlegend=False,
        ),
        height=260,
        caption=f"Half of the trials trained {middle:.3g} samples per second or more.",
        xaxis=look.count_axis("trial", (t.number for t, _ in found)),
        yaxis=look.axis("samples per second", rangemode="tozero"),
    )


def memory(record: StudyRecord) -> go.Figure | None:
    """The most memory each trial held, on the host and on the device, and what was foreseen."""
    kinds = (
        ("host, measured", lambda t: t.notes.get("peak_rss"), look.BLUE, "circle"),
        ("device, measured", lambda t: t.notes.get("device_reserved"), look.VERMILLION, "square"),
        ("host, predicted", lambda t: foreseen(t, "host"), look.SKY, "circle-open"),
        ("device, predicted", lambda t: foreseen(t, "device"), look.ORANGE, "square-open"),
    )
    traces = []
    for name, get, colour, symbol in kinds:
        points = [(t, m) for t in record.trials if (m := real(get(t))) is not None]
        if points:
            traces.append(_peaks(thinned(points, MOST_POINTS), name, colour, symbol))
    if not traces:
        return None
    predicted = any("predicted" in trace.name for trace in traces)
    text = "The most memory each trial held"
    text += f" ({traces[0].name})." if len(traces) == 1 else "."
    text += " Hollow marks are what was predicted." if predicted else " Nothing was predicted."
    return look.figure(
        *traces,
        height=300,
        caption=text,
        xaxis=look.count_axis("trial", (x for trace in traces for x in trace.x)),
        yaxis=look.axis("memory (GiB)", rangemode="tozero"),
    )


def foreseen(trial: TrialRecord, where: str) -> float | None:
    """What was set aside for the trial: bytes, or bytes by place."""
    kept = trial.notes.get("reserved")
    if isinstance(kept, dict):
        return real(kept.get(where))
    return real(kept) if where == "device" else None


def _peaks(
    points: Sequence[tuple[TrialRecord, float]], name: str, colour: str, symbol: str
) -> go.Scatter:
    return go.Scatter(
        x=[t.number for t, _ in points],
        y=[round(m / 2**30, 4) for _, m in points],
        mode="markers",
        name=name,
        marker={"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75},
        hovertext=[f"trial {t.number}, {name}: {size(m)}" for t, m in points],
        hoverinfo="text",
    )
