"""Subset of many test cases for quick runs; 'make slow' runs all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def a_few(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Return the cases, with all but every so many marked slow. In groups of similar cases, the
    position of the quick one varies."""
    chosen = [(place + place // every) % every == 0 for place in range(len(cases))]
    return [_case(case, quick) for case, quick in zip(cases, chosen, strict=True)]


def quick_are(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases, with all but the `quick` ones marked slow."""
    chosen, cases = list(quick), list(cases)
    assert all(case in cases for case in chosen)
    return [_case(case, case in chosen) for case in cases]


def _case(case: Any, quick: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=[] if quick else [pytest.mark.slow])
