"""The same parameter name with other choices in another branch: the first seen keeps the plain
name in storage, each other one gets a name of its own there."""

from __future__ import annotations

from collections.abc import Iterable

from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.trial import FrozenTrial

from supermax.naming import branch_name


class Names:
    """Which stored name a parameter goes by, learnt from the study's trials as they come."""

    def __init__(self, trials: Iterable[FrozenTrial] = ()) -> None:
        self._known: dict[str, BaseDistribution] = {}
        for trial in trials:
            for stored, distribution in trial.distributions.items():
                self._known.setdefault(stored, distribution)

    def stored(self, name: str, distribution: BaseDistribution) -> str:
        """The name to store `name` under; remembers it."""
        if not compatible(self._known.setdefault(name, distribution), distribution):
            name = branch_name(name, distribution)
            self._known.setdefault(name, distribution)
        return name


def compatible(known: BaseDistribution, asked: BaseDistribution) -> bool:
    try:
        check_distribution_compatibility(known, asked)
    except ValueError:
        return False
    return True
