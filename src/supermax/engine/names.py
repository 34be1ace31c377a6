"""The same parameter name with other choices in another branch.

Optuna allows one distribution kind, and one list of choices, per name and study. The first seen
keeps the plain name in storage; each other one gets a name of its own there, made from the plain
name and the choices. The user's code and everything Supermax shows see the plain name.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    check_distribution_compatibility,
)
from optuna.trial import FrozenTrial

_BRANCH = re.compile(r"^(?P<plain>.*)@\[[^\]]*\]$", re.DOTALL)
_WORD = re.compile(r"^[A-Za-z_][\w./ -]*$")
_LONGEST = 60


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


def branch_name(name: str, distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        label = "|".join(map(str, distribution.choices)).replace("]", ")")
        exact = repr(distribution.choices)
    else:
        log = getattr(distribution, "log", False)
        label = exact = type(distribution).__name__.removesuffix("Distribution").lower() + (
            " log" if log else ""
        )
    if len(label) > _LONGEST or not _says_all(distribution):
        digest = hashlib.sha256(exact.encode()).hexdigest()[:8]
        label = f"{label[: _LONGEST - 9]}~{digest}"
    return f"{name}@[{label}]"


def _says_all(distribution: BaseDistribution) -> bool:
    """False where the label could stand for other choices too: "1" and 1, or a "|" in one."""
    if not isinstance(distribution, CategoricalDistribution):
        return True
    choices = distribution.choices
    words = all(isinstance(choice, str) and _WORD.match(choice) for choice in choices)
    return words or all(type(choice) is int for choice in choices)


def plain_name(stored: str, distribution: BaseDistribution | None = None) -> str:
    """The name the objective uses. A user's own name may well look like a branch's: with the
    distribution the two are told apart."""
    match = _BRANCH.match(stored)
    if match is None:
        return stored
    is_branch = distribution is None or branch_name(match["plain"], distribution) == stored
    return match["plain"] if is_branch else stored


def plain_params(trial: FrozenTrial) -> dict[str, Any]:
    """A trial's parameters under the names the objective used."""
    return {plain_name(n, trial.distributions[n]): value for n, value in trial.params.items()}


def under_plain_names(trial: FrozenTrial) -> FrozenTrial:
    if not any(_BRANCH.match(name) for name in trial.distributions):
        return trial
    plain = copy.copy(trial)
    plain.params = plain_params(trial)
    plain.distributions = {plain_name(n, d): d for n, d in trial.distributions.items()}
    return plain
