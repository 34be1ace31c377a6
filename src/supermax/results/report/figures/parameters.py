"""Hyperparameter importances, slice plots and parallel coordinates."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Container, Sequence

import plotly.graph_objects as go
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import under_plain_names
from supermax._util.text import counted
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.choosing import (
    FEWEST_DRAWN,
    FEWEST_RANKED,
    best_first,
    focus,
    maximizes,
    measured,
    thinned,
    value_of,
)
from supermax.results.report.domains import Domain, domains
from supermax.results.report.figures import style
from supermax.results.report.text import number, plot_text

MOST_TRIALS = 2000
MOST_BARS = 20
MOST_SLICED = 400
MOST_LINES = 300
MOST_AXES = 10


def importance(record: StudyRecord, objective: int = 0) -> dict[str, float]:
    """Return the importance of each parameter by PED-ANOVA, in descending order; the sum is 1.

    Names are plain: a parameter with several domains in several branches is one parameter. Empty
    if there are too few trials.
    """
    trials = thinned(measured(record, objective), MOST_TRIALS)
    names = sorted(domains(trials))
    if len(trials) < FEWEST_RANKED or not names:
        return {}
    listed = [_with_value(trial, objective) for trial in trials]
    study = _OneObjective(listed, record.directions[objective])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials in a branch: stated in the caption
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=names)
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return {name: share for name, share in ranked if math.isfinite(share)}


class _OneObjective(Study):
    """Trials of one objective as a study that only lists them: a real one would log and copy."""

    def __init__(self, trials: list[FrozenTrial], direction: str) -> None:
        self._listed = trials
        self._direction = StudyDirection[direction.upper()]

    @property
    def directions(self) -> list[StudyDirection]:
        return [self._direction]

    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return list(self._listed)


def _with_value(trial: TrialRecord, objective: int) -> FrozenTrial:
    """Return the trial under plain names, with one value."""
    frozen = copy.copy(under_plain_names(trial.trial))
    frozen.values = [value_of(trial, objective) or 0.0]
    return frozen


def importances(record: StudyRecord, first: dict[str, float] | None = None) -> go.Figure | None:
    """Return a bar chart of importances, with a bar for each objective.

    `first` are those for the first objective, if they are known already.
    """
    found = importance(record) if first is None else first
    each = [found, *(importance(record, i) for i in range(1, len(record.directions)))]
    if not any(each):
        return None
    names = list(next(found for found in each if found))
    shown = names[:MOST_BARS][::-1]
    several = len(each) > 1
    traces = [
        go.Bar(
            y=list(range(len(shown))),
            x=[style.rounded(found.get(name, 0.0)) for name in shown],
            orientation="h",
            name=plot_text(record.titles[i]),
            marker={
                "color": style.COLOURS[i % len(style.COLOURS)],
                "pattern": {"shape": ("", "/", ".", "x")[i % 4]} if several else {},
            },
            text=[f"{found.get(name, 0.0):.0%}" for name in shown],
            textposition="outside",
            cliponaxis=False,
            hovertext=[f"{plot_text(n)}: {found.get(n, 0.0):.1%}" for n in shown],
            hoverinfo="text",
        )
        for i, found in enumerate(each)
        if found
    ]
    counts = counted(len(measured(record)), "complete trial")
    caption = (
        f"Importance of each parameter for being among the best tenth of trials (PED-ANOVA, "
        f"{counts}). A conditional parameter counts only in trials that have it."
    )
    if len(names) > MOST_BARS:
        caption += f" The first {MOST_BARS} of {len(names)}."
    return style.figure(
        *traces,
        height=70 + len(shown) * (24 if not several else 16 + 12 * len(traces)),
        caption=caption,
        barmode="group",
        bargap=0.35,
        xaxis=style.axis("share", tickformat=".0%", rangemode="tozero"),
        yaxis=style.rows_axis([plot_text(name) for name in shown]),
    )


def slice_plot(record: StudyRecord, parameter: str, objective: int = 0) -> go.Figure | None:
    """Return the values of the best trials against one parameter; None without such trials.

    Unlike Optuna's slice plot, it has one axis for a parameter with several domains, and separates
    the points of a choice.
    """
    ranked = [t for t in best_first(record, objective) if parameter in t.params]
    domain = domains(measured(record, objective)).get(parameter)
    if domain is None or not ranked:
        return None
    return _slice(record, ranked, domain, objective)


def slices(
    record: StudyRecord, parameters: Sequence[str], objective: int = 0
) -> dict[str, go.Figure]:
    """Return a slice plot for each of the parameters that has more than one value."""
    if len(measured(record, objective)) < FEWEST_DRAWN:
        return {}
    known = domains(measured(record, objective))
    ranked = best_first(record, objective)
    return {
        name: _slice(record, [t for t in ranked if name in t.params], known[name], objective)
        for name in parameters
        if name in known
    }


def _slice(
    record: StudyRecord, ranked: list[TrialRecord], domain: Domain, objective: int
) -> go.Figure:
    drawn = ranked[:MOST_SLICED]
    points = [
        (t, at, v)
        for t in drawn
        if (at := domain.at(t.params[domain.name])) is not None
        and (v := value_of(t, objective)) is not None
    ]
    window = focus([v for _, _, v in points], maximizes(record, objective))
    caption = "" if len(drawn) == len(ranked) else f"The best {len(drawn)} of {len(ranked):,}."
    return style.figure(
        style.points(
            (
                style.Point(
                    _jittered(t, at, domain),
                    v,
                    f"trial {t.number}: {number(v)}<br>{plot_text(str(t.params[domain.name]))}",
                )
                for t, at, v in points
            ),
            "",
            {
                "color": [t.number for t, _, _ in points],
                "colorscale": [[i / 5, c] for i, c in enumerate(reversed(style.CIVIDIS))],
                "cmin": 0,
                "cmax": max(record.trials[-1].number, 1),
                "line": {"width": 0.5, "color": "#ffffff"},
            },
            showlegend=False,
        ),
        height=230,
        caption=caption,
        margin={"l": 48, "r": 8, "t": 8, "b": 40},
        xaxis=style.domain_axis(domain),
        yaxis={"range": window, "nticks": 5},
    )


def _jittered(trial: TrialRecord, at: float, domain: Domain) -> float:
    """Return the position with a jitter for choices, deterministic for each trial."""
    if not domain.categorical:
        return style.rounded(at)
    return round(at + ((trial.number * 0.618034) % 1 - 0.5) * 0.5, 3)


def parallel(
    record: StudyRecord, parameters: Sequence[str] | None = None, objective: int = 0
) -> go.Figure | None:
    """Return parallel coordinates: a line per trial, coloured by quintile of its value.

    Unlike Optuna's, lines break where a trial does not have the parameter, choices are in the
    order of their domain, and the axes in order of importance.
    """
    complete = measured(record, objective)
    if len(complete) < FEWEST_DRAWN:
        return None
    known = domains(complete)
    order = list(parameters if parameters is not None else importance(record, objective) or known)
    chosen = [known[name] for name in order if name in known][:MOST_AXES]
    ranked = best_first(record, objective)[:MOST_LINES]
    if len(chosen) < 2 or len(ranked) < 2:
        return None
    values = [v for t in ranked if (v := value_of(t, objective)) is not None]
    result = Domain(style.objective(record, objective), low=min(values), high=max(values))
    scales = [*map(_Scale, chosen), _Scale(result, objective)]
    bands = [band for band in _bands(ranked) if band]
    traces = [_band(band, scales, i, objective) for i, band in enumerate(bands)]
    return style.figure(
        *reversed(traces),
        height=400,
        caption=_parallel_caption(len(ranked), len(complete), len(chosen), len(order)),
        margin={"l": 40, "r": 40, "t": 64, "b": 64},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.06,
            "yanchor": "bottom",
            "traceorder": "reversed",
        },
        annotations=[a for i, scale in enumerate(scales) for a in scale.ticks(i)],
        shapes=[
            {
                "type": "line",
                "x0": i,
                "x1": i,
                "y0": 0,
                "y1": 1,
                "layer": "above",
                "line": {"color": "#77776f", "width": 1},
            }
            for i, _ in enumerate(scales)
        ],
        xaxis={
            "tickvals": list(range(len(scales))),
            "ticktext": [plot_text(s.domain.name, 24) for s in scales],
            "range": [-0.15, len(scales) - 0.55],
            "showgrid": False,
            "showline": False,
            "ticks": "",
            "tickangle": 25,
            "ticklabeloverflow": "allow",
        },
        yaxis={"visible": False, "range": [-0.04, 1.04], "fixedrange": True},
    )


def _parallel_caption(drawn: int, trials: int, axes: int, parameters: int) -> str:
    which = f"All {drawn}" if drawn == trials else f"The {drawn} best of {trials:,}"
    axes_text = f", the {axes} most important parameters" if parameters > axes else ""
    return (
        f"Each line is a trial, from the best fifth (darkest, in front) to the worst. {which} "
        f"complete trials{axes_text}; a line breaks where a trial does not have the parameter. "
        f"Click on the legend to hide a fifth."
    )


class _Scale:
    """Vertical axis of a parameter or the objective, normalised to 0 to 1, with its ticks."""

    def __init__(self, domain: Domain, objective: int | None = None) -> None:
        self.domain = domain
        self._objective = objective
        ends = (domain.low, domain.high)
        self.low, self.high = (math.log10(end) for end in ends) if domain.log else ends

    def at(self, trial: TrialRecord) -> float | None:
        """Return the position of the trial on the axis; None if it has no such parameter."""
        if self._objective is not None:
            at = value_of(trial, self._objective)
        elif self.domain.name in trial.params:
            at = self.domain.at(trial.params[self.domain.name])
        else:
            at = None
        if at is None:
            return None
        span = self.high - self.low
        share = ((math.log10(at) if self.domain.log else at) - self.low) / span if span else 0.5
        return round(share + self._jitter(trial), 4)

    def _jitter(self, trial: TrialRecord) -> float:
        """Return an offset that separates the lines through one choice."""
        if not self.domain.categorical:
            return 0.0
        return ((trial.number * 0.618034) % 1 - 0.5) * min(0.06, 0.4 / len(self.domain.choices))

    def ticks(self, x: int) -> list[dict[str, object]]:
        if self.domain.categorical:
            count = len(self.domain.choices)
            places = thinned(range(count), 8)
            marks = [
                (i / max(count - 1, 1), plot_text(self.domain.choices[i], 16)) for i in places
            ]
        else:
            raw = [self.low + (self.high - self.low) * f for f in (0.0, 0.5, 1.0)]
            values = [10**r if self.domain.log else r for r in raw]
            marks = [(f, number(v, 3)) for f, v in zip((0.0, 0.5, 1.0), values, strict=True)]
        return [
            {
                "x": x,
                "y": y,
                "text": text,
                "showarrow": False,
                "xanchor": "left",
                "xshift": 4,
                "font": {"size": 10},
                "bgcolor": "rgba(255,255,255,0.8)",
                "borderpad": 1,
            }
            for y, text in marks
        ]


def _bands(ranked: list[TrialRecord]) -> list[list[TrialRecord]]:
    """Return the trials in five equal parts, the best first."""
    count = len(ranked)
    return [ranked[count * i // 5 : count * (i + 1) // 5] for i in range(5)]


def _band(trials: list[TrialRecord], scales: list[_Scale], i: int, objective: int) -> go.Scatter:
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str | None] = []
    for trial in trials:
        text = f"trial {trial.number}: {number(value_of(trial, objective))}"
        for j, scale in enumerate(scales):
            x.append(j)
            y.append(scale.at(trial))
            texts.append(text)
        x.append(None)
        y.append(None)
        texts.append(None)
    values = [value_of(trial, objective) or 0.0 for trial in trials]
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        name=f"{number(min(values))} to {number(max(values))}",
        line={"color": style.CIVIDIS[i], "width": 1.8 if i == 0 else 1},
        marker={"size": 3, "color": style.CIVIDIS[i]},
        opacity=0.9 if i == 0 else 0.55,
        hovertext=texts,
        hoverinfo="text",
        showlegend=True,
    )
