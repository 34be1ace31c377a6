"""Throughput, durations, training speed and memory of the trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import plotly.graph_objects as go

from supermax._util.text import counted, took
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.choosing import thinned
from supermax.results.report.figures import style
from supermax.results.report.figures.timeline import in_units
from supermax.results.report.text import real, size_cell

MOST_POINTS = 2000
BINS = 40
_Get = Callable[[TrialRecord], object]
FEWEST = 10
"""Finished trials needed for a rate over time: fewer show chance alone."""


def throughput(record: StudyRecord) -> go.Figure | None:
    """Return finished trials per hour over time."""
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
    return style.figure(
        go.Bar(
            x=[round((i + 0.5) * width / per, 4) for i in range(bins)],
            y=[style.rounded(rate) for rate in rates],
            marker={"color": style.BLUE, "opacity": 0.75},
            hovertext=[f"{counted(c, 'trial')} in {took(width)}" for c in counts],
            hoverinfo="text",
            showlegend=False,
        ),
        height=260,
        caption=(
            f"Finished trials per hour, in bins of {took(width)}; "
            f"{len(ends) / span * 3600:.3g} per hour on average."
        ),
        bargap=0.1,
        xaxis=style.axis(f"time ({unit})"),
        yaxis=style.axis("trials per hour", rangemode="tozero"),
    )


def durations(record: StudyRecord) -> go.Figure | None:
    """Return the seconds of each trial's last attempt, with their running median."""
    timed = [(t, s) for t in record.trials if (s := real(t.seconds)) is not None]
    if not timed:
        return None
    drawn = thinned(timed, MOST_POINTS)
    traces = [
        style.points(
            (
                style.Point(t.number, s, f"trial {t.number}: {took(s)}")
                for t, s in drawn
                if t.state == state
            ),
            state.lower(),
            style.state_marker(state, size=5, opacity=0.7),
        )
        for state in ("COMPLETE", "PRUNED", "FAIL")
    ]
    if len(timed) >= 10:
        traces.append(_running_median(timed))
    log_scale = max(s for _, s in timed) > 20 * max(min(s for _, s in timed), 1e-3)
    return style.figure(
        *traces,
        height=260,
        caption=f"Median: {took(median(s for _, s in timed))}.",
        xaxis=style.count_axis("trial", (t.number for t, _ in timed)),
        yaxis=style.axis("time (s)", type="log" if log_scale else "linear"),
    )


def _running_median(timed: Sequence[tuple[TrialRecord, float]]) -> go.Scatter:
    width = max(5, len(timed) // 25)
    middles = thinned(range(len(timed)), 120)
    return go.Scatter(
        x=[timed[i][0].number for i in middles],
        y=[
            style.rounded(median(s for _, s in timed[max(0, i - width) : i + width + 1]))
            for i in middles
        ],
        mode="lines",
        name="running median",
        line={"color": style.BLACK, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def speed(record: StudyRecord) -> go.Figure | None:
    """Return samples per second, of trials that note them."""
    found = [
        (t, rate)
        for t in record.trials
        for rate in [real(t.result.get("samples_per_second"))]
        if rate is not None
    ]
    if not found:
        return None
    middle = median(rate for _, rate in found)
    return style.figure(
        style.points(
            (
                style.Point(t.number, rate, f"trial {t.number}: {rate:.3g} samples per second")
                for t, rate in found
            ),
            "",
            {"color": style.GREEN, "symbol": "square", "size": 5},
            showlegend=False,
        ),
        height=260,
        caption=f"Median: {middle:.3g} training samples per second.",
        xaxis=style.count_axis("trial", (t.number for t, _ in found)),
        yaxis=style.axis("samples per second", rangemode="tozero"),
    )


def memory(record: StudyRecord) -> go.Figure | None:
    """Return the peak memory of each trial on host and device, measured and predicted."""

    def peaks(name: str, get: _Get, colour: str, symbol: str) -> list[go.Scatter]:
        found = [(t, m) for t in record.trials if (m := real(get(t))) is not None]
        trace = style.points(
            (
                style.Point(t.number, m / 2**30, f"trial {t.number}, {name}: {size_cell(m)}")
                for t, m in thinned(found, MOST_POINTS)
            ),
            name,
            {"color": colour, "symbol": symbol, "opacity": 0.75},
        )
        return [] if trace is None else [trace]

    on_host, on_device = partial(predicted_memory, "host"), partial(predicted_memory, "device")
    predicted = [
        *peaks("host, predicted", on_host, style.SKY, "circle-open"),
        *peaks("device, predicted", on_device, style.ORANGE, "square-open"),
    ]
    measured = [
        *peaks("host, measured", lambda t: t.notes.get("peak_rss"), style.BLUE, "circle"),
        *peaks(
            "device, measured",
            lambda t: t.notes.get("device_reserved"),
            style.VERMILLION,
            "square",
        ),
    ]
    traces = [*measured, *predicted]
    if not traces:
        return None
    text = "Peak memory of each trial"
    text += f" ({traces[0].name})." if len(traces) == 1 else "."
    text += " Hollow marks are predictions." if predicted else " Nothing was predicted."
    return style.figure(
        *traces,
        height=300,
        caption=text,
        xaxis=style.count_axis("trial", (x for trace in traces for x in trace.x)),
        yaxis=style.axis("memory (GiB)", rangemode="tozero"),
    )


def predicted_memory(where: str, trial: TrialRecord) -> float | None:
    """Return the bytes reserved for the trial on `host` or `device`; None if unknown."""
    reserved = trial.notes.get("reserved")
    if isinstance(reserved, dict):
        return real(reserved.get(where))
    return real(reserved) if where == "device" else None
