"""Index and message pages of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from supermax.results.report.html import Html, join, tag
from supermax.results.report.overview import Overview
from supermax.results.report.page import policy, raw, resource

_REFRESH = 10  # seconds
_COLUMNS = ("study", "state", "finished trials", "best", "last fault", "")


def index_page(place: str, studies: Sequence[Overview]) -> str:
    """Return the list of studies with state, report and link to Optuna's dashboard."""
    rows = [
        tag(
            "tr",
            tag("td", tag("a", each.name or "(without a name)", href=f"/report/{each.study_id}")),
            tag("td", each.state),
            tag("td", each.progress, class_="n"),
            tag("td", each.best),
            tag("td", each.fault),
            tag("td", tag("a", "Optuna", href=f"/dashboard/studies/{each.study_id}")),
        )
        for each in studies
    ]
    head = tag("thead", tag("tr", *(tag("th", title) for title in _COLUMNS)))
    body = join(
        tag("h1", "Studies"),
        tag(
            "p",
            f"Storage: {place}. This page reloads every {_REFRESH} seconds; reload a report to "
            f"update it.",
            class_="quiet",
        ),
        tag("section", tag("table", head, tag("tbody", *rows)))
        if rows
        else tag("section", tag("p", "There is no study yet.")),
        tag("footer", tag("a", "Optuna's dashboard of all studies", href="/dashboard")),
    )
    return small_page("Supermax", body, refresh=_REFRESH)


def message_page(message: str) -> bytes:
    body = join(tag("p", message), tag("p", tag("a", "All studies", href="/")))
    return small_page("Supermax", body).encode(errors="replace")


def small_page(title: str, body: Html, refresh: int | None = None) -> str:
    style = resource("page.css")
    reload = [tag("meta", http_equiv="refresh", content=str(refresh))] if refresh else []
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        *reload,
        tag("meta", http_equiv="Content-Security-Policy", content=policy(style, [])),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        raw("style", style),
    )
    kicker = tag("p", "Supermax", class_="kicker")
    return f"<!doctype html>\n{tag('html', head, tag('body', kicker, body), lang='en')}\n"
