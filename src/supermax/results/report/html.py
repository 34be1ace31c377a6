"""HTML that is safe by construction: text is escaped unless `tag` returned it."""

from __future__ import annotations

import html

from supermax.results.report.text import clean_text


class Html(str):
    """Markup from this module; any other string is text and gets escaped."""

    __slots__ = ()


VOID = frozenset({"br", "hr", "link", "meta", "wbr"})


def tag(element: str, /, *children: str | None, **attributes: str | None) -> Html:
    """Return an element. `class_` and `data_x` become class and data-x; None omits it."""
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    opening = f"<{element}{''.join(pairs)}>"
    if element in VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{element}>")


def join(*children: str | None) -> Html:
    return Html("".join(escaped(child) for child in children if child is not None))


def escaped(value: str) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(clean_text(value)))
