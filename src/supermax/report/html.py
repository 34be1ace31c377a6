"""HTML that is safe by construction: text is escaped unless a tag made it."""

from __future__ import annotations

import html

from supermax.report.text import clean


class Html(str):
    """Markup made here; everything else is text."""

    __slots__ = ()


VOID = frozenset({"br", "hr", "link", "meta", "wbr"})


def tag(element: str, /, *children: str | None, **attributes: str | None) -> Html:
    """An element. `class_` and `data_x` become class and data-x; None leaves out."""
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    opening = f"<{element}{''.join(pairs)}>"
    if element in VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{element}>")


def join(*children: str | None) -> Html:
    return Html("".join(text(child) for child in children if child is not None))


def text(value: str) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(clean(value)))
