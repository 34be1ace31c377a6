"""What a parameter was drawn from, as an axis: pure.

A parameter may have had several domains: other branches, other versions of the space, ranges
that moved. On paper it has one axis that holds them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import CategoricalDistribution

from supermax.naming import under_plain_names
from supermax.records import TrialRecord
from supermax.report.text import shown


@dataclass(frozen=True)
class Domain:
    """Numbers, or a list of choices; choices stand at 0, 1, 2, … of their axis."""

    name: str
    log: bool = False
    low: float = 0.0
    high: float = 1.0
    """The least and the greatest finite value seen."""
    choices: tuple[str, ...] = ()
    whole: bool = False
    """Return whether all values are integers."""
    _index: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def categorical(self) -> bool:
        return bool(self.choices)

    def at(self, value: Any) -> float | None:
        """Where a value stands; None for one that has no place."""
        if self.categorical:
            return self._index.get(_key(value))
        return float(value) if math.isfinite(value) else None


def domains(trials: Sequence[TrialRecord]) -> dict[str, Domain]:
    """Every parameter of the trials that has had more than one value, by plain name."""
    values: dict[str, dict[str, Any]] = {}
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


def _domain(name: str, seen: dict[str, Any], kinds: set[str]) -> Domain:
    numbers = all(_is_number(value) for value in seen.values())
    if numbers and "choice" not in kinds:
        finite = [float(value) for value in seen.values() if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        whole = all(isinstance(value, int) for value in seen.values())
        return Domain(name, log=kinds == {"log"} and low > 0, low=low, high=high, whole=whole)
    keys = sorted(seen, key=lambda key: _order(seen[key]))
    labels = tuple(shown(seen[key], 40) for key in keys)
    return Domain(
        name, high=len(keys) - 1.0, choices=labels, _index={key: i for i, key in enumerate(keys)}
    )


def _key(value: Any) -> str:
    """Equal for equal choices: nan is no equal of itself, and 1 one of True."""
    return f"{type(value).__name__} {value!r}"


def _order(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if _is_number(value) else (1, 0.0, str(value))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return not math.isnan(value)
