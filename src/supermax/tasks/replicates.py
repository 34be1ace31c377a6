"""Objective of a race: train configurations of a search again, with other seeds or on other folds.

trial of the race ──schedule──▶ trial of the search, seed or fold ──▶ Config, data ──▶ value
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.trial import BaseTrial

from supermax._util.attributes import REPLICATE
from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.space import nest
from supermax.tasks.objective import AgentObjective
from supermax.training.config import Config
from supermax.training.data.examples import Corpus

FIRST_SEED = 2
"""Least seed of a race: that of a search is 1."""


@dataclass(frozen=True)
class ReplicateObjective(AgentObjective):
    """Optuna objective: train the configuration, with the seed or on the fold, that the schedule
    has for a trial.

    The schedule gives each number of a trial its training. So runs on several machines share a
    race without training anything twice, and a trial has the same training in every attempt.
    """

    schedule: Sequence[tuple[int, int] | None] = ()
    """Trial of the search, and seed or fold, by the number of the race's trial; None: nothing to
    train."""
    params: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters by trial of the search, under the names that the objective uses."""
    folds: Sequence[tuple[Corpus, Corpus]] = ()
    """Training and validation examples of each fold of a cross-validation; (): one split, and
    several seeds."""

    def __call__(self, trial: RemoteTrial) -> float | tuple[float, ...]:
        scheduled = self._scheduled(trial)
        trial.set_user_attr(REPLICATE, list(scheduled))
        if not self.folds:
            return super().__call__(trial)
        train, validation = self.folds[scheduled[1]]
        return AgentObjective.__call__(replace(self, train=train, validation=validation), trial)

    def sampled(self, trial: BaseTrial) -> Config:
        """Return the configuration that is scheduled for a trial."""
        number, replicate = self._scheduled(trial)
        seed = replicate + FIRST_SEED if self.folds else replicate
        sampled = nest(self.params[number])
        part = {**sampled.get("train", {}), "seed": seed}
        return self.config_of({**sampled, "train": part})

    def _scheduled(self, trial: BaseTrial) -> tuple[int, int]:
        number = trial.number
        found = self.schedule[number] if number < len(self.schedule) else None
        if found is None:
            raise optuna.TrialPruned
        return found
