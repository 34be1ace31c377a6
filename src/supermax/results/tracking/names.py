"""Names and values in the form that all trackers accept, of which MLflow is the strictest. Pure
functions.

A name maps to the same key always and on every machine, so that sending again overwrites.
"""

from __future__ import annotations

import hashlib
import posixpath
import re

MOST_KEY = 250
MOST_VALUE = 500
"""Characters of a value: new servers accept 6,000, older ones 500. The full value is in the
trial's configuration.json."""

_ALLOWED = re.compile(r"[/\w.\- :]+")
_DIGEST = 8


def key(name: str) -> str:
    """Return the name if MLflow accepts it, otherwise a similar one made unique by a digest."""
    if _is_valid(name):
        return name
    similar = re.sub(r"[^\w\-]", "_", name)[: MOST_KEY - _DIGEST - 1]
    return f"{similar}-{digest(name)[:_DIGEST]}"


def _is_valid(name: str) -> bool:
    """Return whether MLflow accepts a name: its characters, its length, and no path traversal."""
    return (
        _ALLOWED.fullmatch(name) is not None
        and len(name) <= MOST_KEY
        and posixpath.normpath(name) == name
        and not name.startswith((".", "/"))
    )


def stored_text(value: object, most: int = MOST_VALUE) -> str:
    """Return a value as text for any database: no control characters, at most `most` long."""
    whole = value if isinstance(value, str) else repr(value)
    clean = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in whole)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def digest(*parts: object) -> str:
    """Return a SHA-256 digest of the parts, equal on every machine."""
    joined = "\0".join(map(str, parts))
    return hashlib.sha256(joined.encode("utf-8", "backslashreplace")).hexdigest()
