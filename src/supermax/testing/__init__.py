"""Fault injection: objectives that fail in every way, to test a set-up before a long run."""

from __future__ import annotations

import warnings

from supermax.testing.failures import FAILURES, MOMENTS, failing_objective

__all__ = ["FAILURES", "MOMENTS", "failing_objective"]
_FORMER = {"VILLAINS": "FAILURES", "mischief": "failing_objective"}


def __getattr__(name: str) -> object:
    if name not in _FORMER:
        raise AttributeError(f"module 'supermax.testing' has no attribute {name!r}")
    warnings.warn(
        f"supermax.testing.{name} is now {_FORMER[name]}; the former name will be removed.",
        DeprecationWarning,
        stacklevel=2,
    )
    return globals()[_FORMER[name]]
