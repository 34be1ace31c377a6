"""Storage names of parameters that have different distributions in different branches.

Optuna allows one distribution per name in a study. The first one seen keeps the plain name in
storage; each other one is stored under a name with a suffix of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.trial import FrozenTrial

from supermax._util.attributes import branch_name


class Names:
    """Map from a parameter's name and distribution to its name in storage, built from the trials
    of the study."""

    def __init__(self, trials: Iterable[FrozenTrial]) -> None:
        self._known: dict[str, BaseDistribution] = {}
        for trial in trials:
            for stored, distribution in trial.distributions.items():
                self._known.setdefault(stored, distribution)

    def stored(self, name: str, distribution: BaseDistribution) -> str:
        """Return the name to store `name` under, and remember it."""
        if not compatible(self._known.setdefault(name, distribution), distribution):
            name = branch_name(name, distribution)
            self._known.setdefault(name, distribution)
        return name


def compatible(known: BaseDistribution, requested: BaseDistribution) -> bool:
    """Return whether Optuna accepts both distributions under one name."""
    try:
        check_distribution_compatibility(known, requested)
    except ValueError:
        return False
    return True
