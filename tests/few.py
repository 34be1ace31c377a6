"""Subset of many test cases for quick runs; 'make slow' runs all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def a_few(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Return the cases, with all but every so many marked slow. In groups of similar cases, the
    position of the quick one varies."""
    chosen = [(place + place // every) % every == 0 for place in range(len(cases))]
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if quick else [pytest.mark.slow],
        )
        for case, quick in zip(cases, chosen, strict=True)
    ]
