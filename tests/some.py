"""Some of many cases for the quick tests; all of them with 'make slow'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def some(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Cases, of which all but every third are slow; a third of the neighbours is not always of
    the same kind."""
    chosen = [(place + place // every) % every == 0 for place in range(len(cases))]
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if quick else [pytest.mark.slow],
        )
        for case, quick in zip(cases, chosen, strict=True)
    ]
