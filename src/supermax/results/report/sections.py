"""HTML sections of the report page, made from facts and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supermax._util.text import counted, took
from supermax.results.decoding import decoded, decoding_text
from supermax.results.race import Contestant
from supermax.results.records import FaultRecord, TrialRecord
from supermax.results.report.choosing import value_of
from supermax.results.report.collect import FaultGroup, ReportFacts
from supermax.results.report.html import Html, join, tag
from supermax.results.report.text import (
    clean_text,
    clipped,
    fixed,
    moment,
    number,
    rate,
    real,
    shown,
    size_cell,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_EVIDENCE = 6000
MOST_NUMBERS = 12


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    body: Html


def header(facts: ReportFacts, made: str) -> Html:
    return tag(
        "header",
        tag("p", "Supermax report", class_="kicker"),
        tag("h1", facts.name or "(a study without a name)"),
        tag("p", lead(facts), class_="lead"),
        tag(
            "dl",
            *(_figure_of(key, value, note) for key, value, note in key_figures(facts)),
            class_="keys",
        ),
        tag("p", _dates(facts), " Report made ", tag("time", made), ".", class_="quiet"),
    )


def lead(facts: ReportFacts) -> str:
    """Return a summary of the study in one or two sentences."""
    if not sum(facts.states.values()):
        return "There are no trials yet."
    if not facts.top:
        done = counted(facts.finished, "trial has", "trials have")
        return f"{done} finished, and none has a value."
    if len(facts.objectives) > 1:
        *others, last = (name for name, _ in facts.objectives)
        names = f"{', '.join(others)} and {last}"
        return (
            f"{counted(len(facts.front), 'trial')} of {counted(facts.finished, 'finished one')} "
            f"are on the Pareto front of {names}: none is better than another in every objective."
        )
    (name, direction), best = facts.objectives[0], facts.top[0]
    if (raced := winner_of(facts)) is not None:
        where = " on the validation split" if facts.metric and raced.unit == "seed" else ""
        return f"Trial {best.number} won the race: {name}{where} {raced}.{_refitted(facts)}"
    extreme = "highest" if direction == "maximize" else "lowest"
    where = " on the validation split" if facts.metric else ""
    text = (
        f"Trial {best.number} has the {extreme} {name}{where} of "
        f"{counted(facts.states.get('COMPLETE', 0), 'complete trial')}: {number(value_of(best))}"
    )
    if facts.improvement is not None and facts.improvement[0].number != best.number:
        text += f"; the first trial had {number(facts.improvement[1])}"
    return f"{text}.{_refitted(facts)}"


def winner_of(facts: ReportFacts) -> Contestant | None:
    """Return the winner of the race; None: there is none."""
    return facts.race.best if facts.race is not None else None


def race_table(facts: ReportFacts) -> Html:
    """Return the race: each configuration in the search and in the race, and how much of the
    winner's improvement is likely to be noise; empty if there was none."""
    race = facts.race
    if race is None:
        return Html("")
    name, direction = facts.objectives[0]
    rows = []
    for each in race.contestants:
        end = "winner" if each.trial == race.winner else "stopped" if each.stopped else ""
        rows.append(
            tag(
                "tr",
                tag("td", str(each.trial), class_="n"),
                tag("td", shown(each.value), class_="n"),
                tag("td", each.mean_text),
                tag("td", end or "not clearly worse"),
            )
        )
    how, noise = {
        "seed": (
            "with seeds that the search did not use",
            "seeds: they do not include the choice of the validation rows",
        ),
        "fold": ("on the folds of a cross-validation, without the test split", "folds"),
    }[race.unit]
    note = (
        f"Each configuration was trained again {how}. Among those whose mean is within one "
        f"standard error of the best mean, the winner has the best value in the search. A clearly "
        f"worse configuration was stopped. Intervals (95%) are over {noise}."
    )
    chosen = race.selection(maximize=direction == "maximize")
    return join(
        html_table(["trial", f"{name} in the search", f"mean over {race.unit}s", "result"], rows),
        tag("p", chosen) if chosen else None,
        tag("p", note, class_="quiet note"),
    )


def _refitted(facts: ReportFacts) -> str:
    found = facts.refit.metrics.get(facts.metric) if facts.refit is not None else None
    if facts.refit is None or found is None:
        return ""
    mean, low, high = found
    bounds = ""
    if low is not None and high is not None:
        bounds = f" (95% interval {fixed(low)} to {fixed(high)})"
    return f" A refit of trial {facts.refit.trial} has {fixed(mean)}{bounds} on the test split."


def key_figures(facts: ReportFacts) -> list[tuple[str, str, str]]:
    """Return the key figures, each as name, value and a note below it."""
    states = facts.states
    rows = []
    if facts.top and len(facts.objectives) == 1:
        best = facts.top[0]
        where = ", validation" if facts.metric else ""
        name = f"Best {facts.objectives[0][0]}"
        rows.append(
            (
                name,
                number(value_of(best)),
                f"trial {best.number}{where}" + ", in the search" * (facts.race is not None),
            )
        )
        if (raced := winner_of(facts)) is not None:
            rows.append(
                (
                    f"Over {raced.unit}s",
                    raced.mean_text.split(" over ")[0],
                    f"{counted(len(raced.scores), raced.unit)}, race",
                )
            )
        if facts.refit is not None and (found := facts.refit.metrics.get(facts.metric)):
            seeds = counted(facts.refit.seeds, "seed")
            mean = "mean of " if facts.refit.seeds > 1 else ""
            rows.append(("On the test split", fixed(found[0]), f"refit, {mean}{seeds}"))
    elif facts.top:
        rows.append(("On the Pareto front", f"{len(facts.front)}", "trials"))
    parts = [
        f"{states[state]} {word}"
        for state, word in (
            ("PRUNED", "pruned"),
            ("FAIL", "failed"),
            ("RUNNING", "running"),
            ("PAUSED", "paused"),
            ("WAITING", "queued"),
        )
        if states.get(state)
    ]
    if facts.carried:
        parts.append(f"{facts.carried} carried over")
    rows.append(("Complete trials", f"{states.get('COMPLETE', 0):,}", ", ".join(parts)))
    if facts.rate is not None:
        rows.append(("Trials per hour", rate(facts.rate), "all finished ones"))
    if facts.busy:
        rows.append(("Time in cells", took(facts.busy), "all attempts together"))
    retried = counted(facts.retries, "retry", "retries")
    rows.append(("Faults", f"{facts.faults:,}", retried if facts.retries else ""))
    return rows


def _figure_of(key: str, value: str, note: str) -> Html:
    return tag("div", tag("dt", key), tag("dd", value, tag("small", note) if note else None))


def _dates(facts: ReportFacts) -> str:
    if facts.started is None:
        return "It has not started."
    until = f", last trial finished {moment(facts.ended)}" if facts.ended else ""
    return f"Started {moment(facts.started)}{until}."


def best_configuration(facts: ReportFacts) -> Html:
    """Return the configuration of the best trial, and all that it measured."""
    if not facts.top:
        return tag("p", "There is no configuration to show yet.", class_="quiet")
    trial = facts.top[0]
    left = tag(
        "div",
        tag(
            "h3",
            f"Trial {trial.number}"
            + (f", the best by {facts.objectives[0][0]}" if len(facts.objectives) > 1 else ""),
        ),
        parameters(trial),
    )
    rows: list[tuple[str, str]] = [
        (name, shown(value))
        for (name, _), value in zip(facts.objectives, trial.values or (), strict=False)
    ]
    known = {name for name, _ in rows}
    rows += [(name, shown(value)) for name, value in trial.metrics if name not in known]
    rows += [
        (label, _count(trial.result[key]))
        for key, label in (
            ("best_epoch", "best epoch"),
            ("epochs", "epochs"),
            ("threshold", "threshold"),
            ("parameters", "weights"),
            ("steps", "steps"),
        )
        if trial.result.get(key) is not None
    ]
    if (decoding := decoding_text(trial)) is not None:
        rows.append((f"{decoded(trial).lower()} decoded with", decoding))
    rows.append(("took", took(trial.seconds)))
    measured = "Measured on the validation split" if facts.metric else "Measured"
    right = tag("div", tag("h3", measured), pairs(rows), json_block(facts.config))
    return tag("div", left, right, class_="two")


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else shown(value)


def json_block(config: str) -> Html:
    return tag("details", tag("summary", "The configuration as JSON"), tag("pre", config))


def parameters(trial: TrialRecord) -> Html:
    if not trial.params:
        return tag("p", "It has no parameters.", class_="quiet")
    return pairs([(name, shown(value, 200)) for name, value in trial.params.items()])


def pairs(rows: Iterable[tuple[str, str]]) -> Html:
    return tag(
        "table",
        tag(
            "tbody",
            *(tag("tr", tag("th", key, scope="row"), tag("td", value)) for key, value in rows),
        ),
        class_="pairs",
    )


def trials_table(facts: ReportFacts, trials: Sequence[TrialRecord]) -> Html:
    encoders = any(trial.encoder for trial in trials)
    head = ["trial", *facts.columns]
    head += ["encoder"] if encoders else []
    head += ["machine"] if facts.machine_of else []
    head += ["took", "peak memory", "configuration"]
    rows = []
    for trial in trials:
        cells = [tag("td", str(trial.number), class_="n")]
        cells += [tag("td", shown(value), class_="n") for value in trial.values or ()]
        cells += [tag("td", trial.encoder or "–")] if encoders else []
        if facts.machine_of:
            cells.append(tag("td", facts.machine_of.get(trial.number, "–")))
        cells += [
            tag("td", took(trial.seconds), class_="n"),
            tag("td", _peak(trial), class_="n"),
        ]
        cells.append(tag("td", tag("details", tag("summary", _gist(trial)), parameters(trial))))
        rows.append(tag("tr", *cells))
    return html_table(head, rows)


def machines_table(facts: ReportFacts) -> Html:
    """Return the runs of a shared study: who runs what, and who lost what; empty for one run."""
    if not facts.machines:
        return Html("")
    head = ["machine", "run", "last seen", "workers", "finished", "unfinished"]
    with_paused = any(machine.paused for machine in facts.machines)
    head += [*["paused"] * with_paused, "taken over from it"]
    rows = []
    for machine in facts.machines:
        seen = "" if machine.state.startswith("running") else f"{took(machine.seen)} ago"
        rows.append(
            tag(
                "tr",
                tag("td", machine.name),
                tag("td", machine.state),
                tag("td", seen, class_="n"),
                tag("td", str(machine.workers), class_="n"),
                tag("td", f"{machine.finished:,}", class_="n"),
                tag("td", numbers(machine.running)),
                *[tag("td", str(machine.paused), class_="n")] * with_paused,
                tag("td", numbers(machine.lost)),
            )
        )
    return html_table(head, rows)


def numbers(found: Sequence[int]) -> str:
    """Return numbers of trials, at most twelve of them."""
    shown_ = ", ".join(map(str, found[:MOST_NUMBERS]))
    more = len(found) - MOST_NUMBERS
    return f"{shown_} and {more} more" if more > 0 else shown_ or "–"


def _peak(trial: TrialRecord) -> str:
    return size_cell(trial.notes.get("device_reserved") or trial.notes.get("peak_rss"))


def _gist(trial: TrialRecord) -> str:
    return clipped(
        ", ".join(f"{k.split('.')[-1]} {shown(v, 20)}" for k, v in trial.params.items()), 64
    )


def html_table(head: Sequence[str], rows: Sequence[Html], class_: str | None = None) -> Html:
    made = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody", *rows),
        class_=class_,
    )
    return tag("div", made, class_="wide")


def fault_sections(facts: ReportFacts) -> Html:
    if not facts.groups:
        return tag("p", "There were no faults.", class_="quiet")
    parts = [
        tag(
            "p",
            f"{counted(facts.faults, 'fault')} of "
            f"{counted(len(facts.groups) + facts.groups_left_out, 'kind')}, the most frequent "
            f"first. The evidence shown is that of the last fault of each kind.",
            class_="quiet",
        ),
        *(_fault(group) for group in facts.groups),
    ]
    if facts.groups_left_out:
        parts.append(tag("p", f"… and {facts.groups_left_out} more kinds.", class_="quiet"))
    return join(*parts)


def _fault(group: FaultGroup) -> Html:
    example = group.example
    numbers = ", ".join(map(str, group.trials)) + (f" and {group.more} more" if group.more else "")
    facts = [
        ("trials", numbers),
        ("decision", "; ".join(group.decisions)),
        ("advice", example.advice),
        ("details", ", ".join(_details(example))),
    ]
    evidence = [
        _evidence(
            "Configuration", "\n".join(f"{k}: {shown(v, 200)}" for k, v in group.params.items())
        ),
        _evidence("Traceback", example.traceback or ""),
        _evidence("Tail of the log", group.log),
    ]
    return tag(
        "article",
        tag(
            "h3",
            group.kind,
            tag("span", f" × {group.count}", class_="count"),
            tag("span", group.culprit, class_="culprit", data_culprit=group.culprit),
        ),
        tag("p", clipped(example.message, 600), class_="message"),
        pairs([(key, value) for key, value in facts if value]),
        tag("div", *(part for part in evidence if part), class_="evidence"),
        class_="fault",
    )


def _details(fault: FaultRecord) -> Iterable[str]:
    """Yield what is known about the end of the attempt."""
    if fault.at is not None:
        yield moment(fault.at)
    if fault.signal is not None:
        yield f"signal {fault.signal}"
    if fault.exit_code is not None:
        yield f"exit code {fault.exit_code}"
    if fault.seconds is not None:
        yield f"after {took(real(fault.seconds))}"
    if fault.last_step is not None:
        yield f"last step {fault.last_step}"
    if fault.peak_rss is not None:
        yield f"peak memory {size_cell(fault.peak_rss)}"


def _evidence(title: str, content: str) -> Html | None:
    content = clean_text(content).strip("\n")
    if not content.strip():
        return None
    if len(content) > MOST_EVIDENCE:
        left_out = f"[… {len(content) - MOST_EVIDENCE:,} characters left out …]"
        content = f"{left_out}\n{content[-MOST_EVIDENCE:]}"
    return tag("details", tag("summary", title), tag("pre", content))


def reproduce(facts: ReportFacts) -> Html:
    versions = ", ".join(f"{name} {number}" for name, number in facts.versions)
    parts = [
        tag("div", pairs(facts.about), class_="about"),
        _search_again(facts),
        tag("h3", "Commands to show this study"),
        tag("pre", "\n".join(facts.commands)),
        tag("p", f"Versions that made this report: {versions}.", class_="quiet"),
    ]
    if facts.space is None:
        parts.append(
            tag(
                "p",
                "The study has no stored space: it was created with Optuna alone.",
                class_="quiet",
            )
        )
        return join(*parts)
    space = facts.space
    rows = [
        tag("tr", tag("td", name), tag("td", str(branch)), tag("td", str(branch.when or "")))
        for name, parameter in space.parameters.items()
        for branch in parameter.branches
    ]
    parts += [
        tag("h3", f"Space “{space.name}”, version {space.version}"),
        html_table(["parameter", "drawn from", "when"], rows),
    ]
    if space.constraints:
        parts.append(tag("ul", *(tag("li", f"must hold: {c}") for c in space.constraints)))
    return join(*parts)


def _search_again(facts: ReportFacts) -> Html | None:
    """Return the settings of the search as a file, and the command that runs it."""
    if not facts.settings:
        return None
    return join(
        tag("h3", "Run the search again"),
        tag(
            "p",
            "Save the settings below as search.yaml beside the data. Then run in that folder, "
            "with a new storage:",
            class_="quiet",
        ),
        tag("pre", "supermax tune search.yaml --storage again.db"),
        tag("details", tag("summary", "search.yaml"), tag("pre", facts.settings)),
    )


def figures(*found: tuple[str, go.Figure | None], layout: str = "figures") -> Html | None:
    """Return placeholders into which the page's script draws; None without any figure.

    `layout`: "figures" below each other, "halves" side by side, "small" in a grid.
    """
    there = [(key, figure) for key, figure in found if figure is not None]
    if not there:
        return None
    parts = [_placeholder(key, figure) for key, figure in there]
    return tag("div", *parts, class_=layout)


def _placeholder(key: str, figure: go.Figure) -> Html:
    caption = str((figure.layout.meta or {}).get("caption", ""))
    height = int(figure.layout.height)
    return tag(
        "figure",
        tag(
            "div",
            class_=f"plot h{height}",
            id=f"plot-{key}",
            role="img",
            aria_label=caption or key,
        ),
        tag("figcaption", caption) if caption else None,
    )
