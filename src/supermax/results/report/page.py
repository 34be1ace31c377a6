"""HTML page of a StudyRecord, self-contained: it needs no network and no other file.

A Content-Security-Policy allows only scripts with known hashes, so that even text that was not
escaped could not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from supermax.errors import UserError
from supermax.results.records import StudyRecord
from supermax.results.report import quality, sections
from supermax.results.report.choosing import FEWEST_DRAWN, FEWEST_RANKED
from supermax.results.report.collect import ReportFacts, collect
from supermax.results.report.html import Html, join, tag
from supermax.results.report.sections import Section
from supermax.results.report.text import moment

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_SLICES = 12
MOST_FIGURES_OF_OBJECTIVES = 3
GENERATOR = "Supermax report"


def page(record: StudyRecord, storage: str | None = None, made: float | None = None) -> str:
    """Return the report. `storage` is its displayed address, without a password; `made` the Unix
    time of the report."""
    drawn = draw_figures(record, made)
    facts = collect(record, storage)
    parts = [part for part in _sections(facts, drawn) if part.body]
    body = join(
        sections.header(facts, moment(made)),
        tag(
            "nav",
            *(tag("a", part.title, href=f"#{part.id}") for part in parts),
            aria_label="Sections",
        ),
        tag("main", *(_section(part) for part in parts)),
        tag(
            "footer",
            "Made by Supermax from the study and its run folder. It contains no text of the "
            "data, unless an objective printed it.",
        ),
    )
    return _document(facts.name, body, drawn)


def draw_figures(record: StudyRecord, now: float | None = None) -> dict[str, go.Figure | None]:
    """Return every figure of the page by its id; None for one without data."""
    require_plotly()
    from supermax.results.report import figures as f

    shares = f.importance(record)
    ranked = list(shares)
    several = range(len(record.directions))
    drawn = {
        **{f"history-{i}": f.history(record, i) for i in several[:MOST_FIGURES_OF_OBJECTIVES]},
        **{
            f"pareto-{i}": f.pareto(record, 0, i)
            for i in several[1 : MOST_FIGURES_OF_OBJECTIVES + 1]
        },
        "importances": f.importances(record, shares),
        "parallel": f.parallel(record, ranked or None),
        "curves": f.curves(record),
        "encoders": f.encoders(record),
        "timeline": f.timeline(record, now),
        "throughput": f.throughput(record),
        "durations": f.durations(record),
        "speed": f.speed(record),
        "memory": f.memory(record),
    }
    shown = (ranked or sorted({n for t in record.trials for n in t.params}))[:MOST_SLICES]
    for i, figure in enumerate(f.slices(record, shown).values()):
        drawn[f"slice-{i}"] = figure
    return drawn


def require_plotly() -> None:
    try:
        import plotly  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(
            "A report needs plotly, which is not installed: pip install 'supermax[report]'."
        ) from None


def _sections(facts: ReportFacts, drawn: dict[str, go.Figure | None]) -> list[Section]:
    def some(*prefixes: str, layout: str = "figures") -> Html:
        keys = [key for key in drawn if key.startswith(prefixes)]
        return sections.figures(*((key, drawn[key]) for key in keys), layout=layout) or Html("")

    top = sections.trials_table(facts, facts.top) if len(facts.top) > 1 else None
    objective = facts.objectives[0][0]
    several = len(facts.objectives) > 1
    slices = some("slice-", layout="small")
    important = ", the most important first" if drawn.get("importances") is not None else ""
    note = tag(
        "p",
        f"{objective} of complete trials against each parameter{important}. Darker points are "
        f"later trials.",
        class_="quiet",
    )
    return [
        Section("result", "Result", join(quality.comparison(facts), quality.selection(facts))),
        Section("race", "Race", sections.race_table(facts)),
        Section("predictions", "Predictions", quality.predictions(facts)),
        Section("data", "Data", quality.data(facts)),
        Section("front", "Front", some("pareto-")),
        Section("history", "History", some("history-", layout="halves" if several else "figures")),
        Section("best", "Best configuration", sections.best_configuration(facts)),
        Section("top", "Best trials", top or Html("")),
        Section("importances", "Importances", some("importances") or _too_few(facts)),
        Section("slices", "Slices", join(note, slices) if slices else Html("")),
        Section("parallel", "Parallel coordinates", some("parallel")),
        Section("curves", "Learning curves", some("curves")),
        Section("encoders", "Encoders", some("encoders")),
        Section("faults", "Faults", sections.fault_sections(facts)),
        Section("machines", "Machines", sections.machines_table(facts)),
        Section("timeline", "Cells over time", some("timeline")),
        Section("speed", "Speed", some("throughput", "durations", "speed", layout="halves")),
        Section("memory", "Memory", some("memory")),
        Section("reproduce", "To reproduce", sections.reproduce(facts)),
    ]


def _too_few(facts: ReportFacts) -> Html:
    """Return a note on which figures need more trials, and how many."""
    complete = facts.states.get("COMPLETE", 0)
    if not complete or complete >= FEWEST_RANKED:
        return Html("")
    text = f"Importances need at least {FEWEST_RANKED} complete trials"
    if complete < FEWEST_DRAWN:
        text += f", slices and parallel coordinates {FEWEST_DRAWN}"
    return tag("p", f"{text}; there are {complete}.", class_="quiet")


def _section(part: Section) -> Html:
    return tag("section", tag("h2", part.title), part.body, id=f"{part.id}")


def _document(title: str, body: Html, drawn: dict[str, go.Figure | None]) -> str:
    there = {key: figure for key, figure in drawn.items() if figure is not None}
    style = resource("page.css") + _heights(there)
    scripts = [_plotly(), resource("page.js")] if there else []
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(style, scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=GENERATOR),
        tag("title", f"{title} – Supermax report"),
        raw("style", style),
        *(Html(f'<style id="{key}"></style>') for key in _map_style_ids(scripts)),
    ]
    data = [_data(key, figure) for key, figure in there.items()]
    code = [raw("script", script) for script in scripts]
    document = tag(
        "html",
        tag("head", *head),
        tag("body", body, *data, *code),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def policy(style: str, scripts: list[str]) -> str:
    """Return a Content-Security-Policy that allows only these scripts and styles, and an empty
    style element, into which Plotly inserts its rules."""
    hashes = " ".join(map(_hash, scripts)) or "'none'"
    rules = [
        "default-src 'none'",
        f"script-src {hashes}",
        f"style-src {_hash(style)} {_hash('')}",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def raw(name: str, content: str) -> Html:
    """Return a script or style of the package, unescaped. Its hash in the policy covers every
    byte between the tags."""
    if f"</{name}" in content.lower() or "\r" in content:
        raise AssertionError(f"the {name} contains its end tag or a carriage return")
    return Html(f"<{name}>{content}</{name}>")


def _data(key: str, figure: go.Figure) -> Html:
    """Return a figure as JSON, with the characters escaped that could end the element."""
    import plotly.io

    text = json.loads(plotly.io.to_json(figure, engine="json"))
    text["layout"].pop("meta", None)
    content = json.dumps(text, separators=(",", ":"), sort_keys=True)
    for character in "<>&":
        content = content.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" data-plot="{key}">{content}</script>')


def _heights(drawn: dict[str, go.Figure]) -> str:
    """Return CSS that reserves the height of each plot before it is drawn. The policy forbids
    inline styles."""
    heights = sorted({int(figure.layout.height) for figure in drawn.values()})
    return "".join(f".h{height}{{min-height:{height}px}}\n" for height in heights)


def resource(name: str) -> str:
    return files("supermax.results.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("\r\n", "\n")


def _map_style_ids(scripts: list[str]) -> list[str]:
    """Return ids of the style elements that Plotly's map library adds unless they exist. Empty
    ones are put into the page: no map is drawn, and the policy would block them."""
    pattern = r'getElementById\("([0-9a-f]{64})"\)\)\{var \w+=document\.createElement\("style"\)'
    return sorted({key for script in scripts for key in re.findall(pattern, script)})
