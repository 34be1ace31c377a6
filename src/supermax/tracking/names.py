"""Names and values as MLflow takes them: pure functions.

The same name gives the same key at all times and on all machines, so that what is sent again
lands where it was.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from typing import Any

MOST_KEY = 250
MOST_VALUE = 500
"""Servers of today take 6,000 characters, older ones 500. The whole value is in the trial's
configuration, which goes along as a file."""

_ALLOWED = re.compile(r"[/\w.\- :]+")
_DIGEST = 8


def key(name: str) -> str:
    """The name itself where MLflow takes it, otherwise one like it that no other name gives."""
    if _is_fine(name):
        return name
    like = re.sub(r"[^\w\-]", "_", name)[: MOST_KEY - _DIGEST - 1]
    return f"{like}-{digest(name)[:_DIGEST]}"


def _is_fine(name: str) -> bool:
    """MLflow's own rules: its characters, its length, and no path that leads elsewhere."""
    return (
        _ALLOWED.fullmatch(name) is not None
        and len(name) <= MOST_KEY
        and posixpath.normpath(name) == name
        and not name.startswith((".", "/"))
    )


def text(value: Any, most: int = MOST_VALUE) -> str:
    """A value as text that every database takes: no control characters, and not too long."""
    whole = value if isinstance(value, str) else repr(value)
    clean = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in whole)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def digest(*parts: object) -> str:
    """The same for the same parts, on any machine."""
    joined = "\0".join(map(str, parts))
    return hashlib.sha256(joined.encode("utf-8", "backslashreplace")).hexdigest()
