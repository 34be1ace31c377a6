"""Common style of the figures: colours for colour-blind readers, each with a symbol or a dash,
light axes, and a caption.

Texts of users go through plot_text, and into `hovertext`, `ticktext` and `name` only: never into
a template, in which Plotly would substitute anything that looks like a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.domains import Domain
from supermax.results.report.text import clipped, plot_text, shown

# Palette of Okabe and Ito.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#8a8a85", "#d9d9d4"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star", "hexagon", "bowtie")
STATES = {
    "COMPLETE": (BLUE, "circle"),
    "PRUNED": (ORANGE, "diamond-open"),
    "FAIL": (VERMILLION, "x-thin-open"),
    "RUNNING": (GREEN, "triangle-right-open"),
    "WAITING": (GREY, "circle-open"),
}
# Cividis: perceptually uniform, also for colour-blind readers and in greyscale.
CIVIDIS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
MOST_TICKS = 12
OUTSIDE = " A few much worse values are out of range; double-click to show all."
FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"

_AXIS = {
    "gridcolor": "#ecece8",
    "linecolor": "#b8b8b2",
    "zeroline": False,
    "showline": True,
    "ticks": "outside",
    "tickcolor": "#b8b8b2",
    "ticklen": 4,
    "automargin": True,
    "title": {"standoff": 8, "font": {"size": 12}},
}
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 12, "color": "#33332f"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": list(COLOURS),
        "hoverlabel": {"align": "left", "bgcolor": "#fffefa", "font": {"family": FONT}},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#a3a39c", "activecolor": "#33332f"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


Layout = dict[str, object]


def figure(
    *traces: BaseTraceType | None, height: int, caption: str, **layout: object
) -> go.Figure:
    """Return a figure in the common style, with its caption as plain text in
    `layout.meta["caption"]`. Traces that are None are left out."""
    base: Layout = {
        "template": _TEMPLATE,
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "yref": "paper"},
        "meta": {"caption": caption},
    }
    made = go.Figure([trace for trace in traces if trace is not None], layout={**base, **layout})
    named = sum(trace.showlegend is not False for trace in made.data) > 1
    made.update_layout(showlegend=named)  # a legend of one entry is useless
    if named and "margin" not in layout:
        made.update_layout(margin_t=40)
    return made


class Point(NamedTuple):
    x: float
    y: float
    text: str
    """Hover text, escaped."""


def points(
    found: Iterable[Point], name: str, marker: Mapping[str, object], **more: object
) -> go.Scatter | None:
    """Return points as one trace; None without any."""
    drawn = list(found)
    if not drawn:
        return None
    return go.Scatter(
        x=[point.x for point in drawn],
        y=[rounded(point.y) for point in drawn],
        name=name,
        marker={"size": 6, **marker},
        hovertext=[point.text for point in drawn],
        hoverinfo="text",
        **{"mode": "markers", **more},
    )


def state_marker(state: str, **more: object) -> Layout:
    colour, symbol = STATES[state]
    return {"color": colour, "symbol": symbol, **more}


def rows_axis(labels: Sequence[str], **more: object) -> Layout:
    """Return a vertical axis with a label for each row 0, 1, 2, …"""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
        "showgrid": False,
        "ticks": "",
        **more,
    }


def axis(title: str, **more: object) -> Layout:
    return {"title": {"text": plot_text(title)}, **more}


def objective(record: StudyRecord, which: int = 0) -> str:
    """Return an objective as the title of an axis, with the split of a metric."""
    return record.titles[which] + (" (validation)" if record.on_validation(which) else "")


def count_axis(title: str, numbers: Iterable[float], **more: object) -> Layout:
    """Return an axis of trials or epochs, with ticks at integers only."""
    found = list(numbers)
    few = not found or max(found) - min(found) <= MOST_TICKS
    return axis(title, tickformat=",d", **({"dtick": 1} if few else {}), **more)


def ordered(i: int, of: int) -> str:
    """Return the colour of the i-th of `of` ranked items: the first is the darkest, the last still
    dark enough on white."""
    at = 0.8 * i / max(of - 1, 1) * (len(CIVIDIS) - 1)
    low = min(int(at), len(CIVIDIS) - 2)
    ends = [[int(CIVIDIS[k][j : j + 2], 16) for j in (1, 3, 5)] for k in (low, low + 1)]
    mixed = [round(a + (b - a) * (at - low)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def domain_axis(domain: Domain, title: str | None = None) -> Layout:
    """Return the axis of a parameter: linear, logarithmic, or with choices by name."""
    named = axis(domain.name if title is None else title)
    if not domain.categorical:
        wide = domain.log and domain.high > 30 * domain.low
        if domain.whole and not domain.log and domain.high - domain.low <= 6:
            return {**named, "type": "linear", "dtick": 1, "tickformat": ",d"}
        return {
            **named,
            "type": "log" if domain.log else "linear",
            # Not a power of ten as a superscript: Plotly would give it an inline style, which the
            # page's Content-Security-Policy blocks.
            "exponentformat": "e",
            **({"dtick": 1} if wide else {"nticks": 6}),
        }
    most = 16
    every = -(-len(domain.choices) // most)
    at = range(0, len(domain.choices), every)
    return {
        **named,
        "type": "linear",
        "tickmode": "array",
        "tickvals": list(at),
        "ticktext": [plot_text(domain.choices[i], 22) for i in at],
        "range": [-0.5, len(domain.choices) - 0.5],
        "showgrid": False,
    }


def hover_text(trial: TrialRecord, names: Sequence[str], most: int = 12) -> str:
    """Return the hover text of a trial, with at most `most` parameters."""
    lines = [f"trial {trial.number}, {trial.state.lower()}"]
    for name, value in zip(names, trial.values or (), strict=False):
        lines.append(f"{clipped(name, 30)} = {shown(value)}")
    params = list(trial.params.items())
    lines += [f"{clipped(name, 36)}: {shown(value, 40)}" for name, value in params[:most]]
    if len(params) > most:
        lines.append(f"… and {len(params) - most} more")
    if trial.origin is not None:
        lines.append("carried over from an earlier version")
    return "<br>".join(plot_text(line, 90) for line in lines)


def rounded(value: float) -> float:
    """Return the value with six significant digits: more than visible, in half the bytes."""
    return float(f"{value:.6g}")
