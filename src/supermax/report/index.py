"""The dashboard's own small pages."""

from __future__ import annotations

from collections.abc import Sequence

from supermax.report.html import Html, join, tag
from supermax.report.page import policy, raw, resource
from supermax.words import counted


def index_page(place: str, studies: Sequence[tuple[int, str, int]]) -> str:
    """Every study with its report and its place in Optuna's dashboard."""
    rows = [
        tag(
            "tr",
            tag("td", tag("a", name or "(without a name)", href=f"/report/{study_id}")),
            tag("td", counted(trials, "trial"), class_="n"),
            tag("td", tag("a", "in Optuna's dashboard", href=f"/dashboard/studies/{study_id}")),
        )
        for study_id, name, trials in studies
    ]
    body = join(
        tag("h1", "Studies"),
        tag(
            "p",
            f"In {place}. A report is as new as the study, within a few seconds: reload it.",
            class_="quiet",
        ),
        tag("section", tag("table", tag("tbody", *rows)))
        if rows
        else tag("section", tag("p", "There is no study yet.")),
        tag("footer", tag("a", "Optuna's dashboard of all studies", href="/dashboard")),
    )
    return small_page("Supermax", body)


def message_page(message: str) -> bytes:
    body = join(tag("p", message), tag("p", tag("a", "All studies", href="/")))
    return small_page("Supermax", body).encode(errors="replace")


def small_page(title: str, body: Html) -> str:
    style = resource("page.css")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(style, [])),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        raw("style", style),
    )
    kicker = tag("p", "Supermax", class_="kicker")
    return f"<!doctype html>\n{tag('html', head, tag('body', kicker, body), lang='en')}\n"
