"""Some of many cases for the quick tests; all of them with 'make slow'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def a_few(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Cases, of which all but every so many are slow. Where a few of a kind stand together, it is
    not always the same one of them."""
    chosen = [(place + place // every) % every == 0 for place in range(len(cases))]
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if quick else [pytest.mark.slow],
        )
        for case, quick in zip(cases, chosen, strict=True)
    ]
