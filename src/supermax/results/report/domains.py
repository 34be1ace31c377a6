"""Domain of a parameter as a plot axis. All functions are pure.

A parameter may have had several distributions: in other branches, in other versions of the space,
or with changed ranges. A figure shows one axis that covers them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from optuna.distributions import CategoricalDistribution

from supermax._util.attributes import under_plain_names
from supermax.results.records import TrialRecord
from supermax.results.report.text import shown


@dataclass(frozen=True)
class Domain:
    """Range of numbers, or list of choices at positions 0, 1, 2, … of the axis."""

    name: str
    log: bool = False
    low: float = 0.0
    high: float = 1.0
    """Least and greatest finite value that occurs."""
    choices: tuple[str, ...] = ()
    whole: bool = False
    """True if all values are integers."""
    _index: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def categorical(self) -> bool:
        return bool(self.choices)

    def at(self, value: object) -> float | None:
        """Return the position of a value on the axis; None if it has none."""
        if self.categorical:
            return self._index.get(_key(value))
        return float(value) if _is_number(value) and math.isfinite(value) else None


def domains(trials: Sequence[TrialRecord]) -> dict[str, Domain]:
    """Return the domain of each parameter with more than one value, by plain name."""
    values: dict[str, dict[str, object]] = {}
    kinds: dict[str, set[str]] = {}
    for trial in trials:
        plain = under_plain_names(trial.trial)
        for name, value in plain.params.items():
            distribution = plain.distributions[name]
            values.setdefault(name, {}).setdefault(_key(value), value)
            categorical = isinstance(distribution, CategoricalDistribution)
            log = bool(getattr(distribution, "log", False))
            kinds.setdefault(name, set()).add(
                "choice" if categorical else "log" if log else "linear"
            )
    return {
        name: _domain(name, seen, kinds[name])
        for name, seen in sorted(values.items())
        if len(seen) > 1
    }


def _domain(name: str, seen: dict[str, object], kinds: set[str]) -> Domain:
    numbers = all(_is_number(value) for value in seen.values())
    whole = all(type(value) is int for value in seen.values())
    if numbers and "choice" not in kinds:
        finite = [float(v) for v in seen.values() if _is_number(v) and math.isfinite(v)] or [0.0]
        low, high = min(finite), max(finite)
        return Domain(name, log=kinds == {"log"} and low > 0, low=low, high=high, whole=whole)
    keys = sorted(seen, key=lambda key: _order(seen[key]))
    labels = tuple(shown(seen[key], 40) for key in keys)
    index = {key: i for i, key in enumerate(keys)}
    return Domain(name, high=len(keys) - 1.0, choices=labels, whole=whole, _index=index)


def _key(value: object) -> str:
    """Return a key that is equal for equal choices: unlike the values themselves, where nan is
    not equal to nan, and 1 is equal to True."""
    return f"{type(value).__name__} {value!r}"


def _order(value: object) -> tuple[int, float, str]:
    return (0, float(value), "") if _is_number(value) else (1, 0.0, str(value))


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return not math.isnan(value)
