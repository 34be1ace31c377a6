"""Hyperparameter importances, slice plots and parallel coordinates."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Container, Sequence

import plotly.graph_objects as go
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import plot_parallel_coordinate

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
    """Return Optuna's parallel coordinates, for the best trials and the first of `parameters`."""
    complete = measured(record, objective)
    if len(complete) < FEWEST_DRAWN:
        return None
    known = domains(complete)
    order = list(parameters if parameters is not None else importance(record, objective) or known)
    chosen = [known[name] for name in order if name in known][:MOST_AXES]
    ranked = best_first(record, objective)[:MOST_LINES]
    if len(chosen) < 2 or len(ranked) < 2:
        return None
    trials = [_drawn(trial, chosen, objective) for trial in ranked]
    title = plot_text(style.objective(record, objective))
    study = _OneObjective(trials, record.directions[objective])
    made = plot_parallel_coordinate(study, target_name=title)
    # The first coordinate is the objective. The best trials are drawn last, which is on top; the
    # colour bar and the legend have no coordinates.
    lines = [trace for trace in made.data if trace.y[0] is not None]
    lines.sort(key=lambda trace: trace.y[0], reverse=not maximizes(record, objective))
    figure = style.figure(
        *lines,
        *(trace for trace in made.data if trace.y[0] is None),
        height=400,
        caption=_parallel_caption(len(ranked), len(complete), len(chosen), len(order)),
        margin={"l": 56, "r": 16, "t": 24, "b": 64},
        annotations=made.layout.annotations,
        shapes=made.layout.shapes,
        xaxis=made.layout.xaxis,
        yaxis=made.layout.yaxis,
    )
    figure.update_traces(marker_colorbar_thickness=10, selector={"mode": "markers"})
    figure.update_annotations(bgcolor="rgba(255,255,255,0.7)")
    figure.update_xaxes(showline=False, ticks="", tickangle=25, ticklabeloverflow="allow")
    return figure


def _drawn(trial: TrialRecord, chosen: Sequence[Domain], objective: int) -> FrozenTrial:
    """Return the trial with the chosen parameters alone: their names and choices escaped, and one
    distribution for all domains of a parameter."""
    frozen = _with_value(trial, objective)
    frozen.params, frozen.distributions, frozen.user_attrs = {}, {}, {}
    for domain in chosen:
        at = domain.at(trial.params[domain.name]) if domain.name in trial.params else None
        if at is None:
            continue
        name = plot_text(domain.name, 24)
        if domain.categorical:
            # Optuna puts numbers in order, and texts in the order of their first trials.
            value = (
                trial.params[domain.name]
                if domain.whole
                else plot_text(domain.choices[int(at)], 16)
            )
            frozen.params[name] = value
            frozen.distributions[name] = CategoricalDistribution((value,))
        else:
            frozen.params[name] = at
            frozen.distributions[name] = FloatDistribution(domain.low, domain.high, log=domain.log)
    return frozen


def _parallel_caption(drawn: int, trials: int, axes: int, parameters: int) -> str:
    which = f"All {drawn}" if drawn == trials else f"The {drawn} best of {trials:,}"
    axes_text = f", the {axes} most important parameters" if parameters > axes else ""
    return (
        f"Each line is a trial; darker is better. {which} complete trials{axes_text}. None: the "
        f"trial does not have the parameter."
    )
