"""Search that has run, with its best configurations.

Search.run() ──▶ Tuned ──▶ winner, best trials, Config
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from optuna.study import Study

from supermax._util.attributes import BASELINES, EXPERIMENT, RESULT, plain_params
from supermax.agents import agent_of
from supermax.engine.ranking import ranked
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.results.race import RaceRecord
from supermax.space import Space, nest
from supermax.tasks.objective import configured
from supermax.tasks.preflight import DECODING
from supermax.training.config import Config
from supermax.training.data.splits import Splits
from supermax.training.eval.baseline import trivial
from supermax.training.eval.metrics import METRICS


class Baseline(NamedTuple):
    """Baseline, and its value of the first objective."""

    name: str
    value: float
    fitted: bool
    """False: a trivial one."""


@dataclass(frozen=True)
class Tuned:
    """Search that has run: to its number of trials, or until it was stopped."""

    agent: str
    study: Study
    summary: Summary
    splits: Splits
    space: Space
    objectives: Sequence[str]
    limits: dict[str, Any]
    race: RaceRecord | None = None
    """Race of the best configurations; None: there was none, or it has not ended."""

    def unbeaten_baseline(self, value: float) -> Baseline | None:
        """Return a baseline on the validation split whose first objective is no worse than
        `value`: the trivial one, else the fitted one; None: there is none."""
        objective, targets = self.objectives[0], agent_of(self.agent).targets
        if (metric := METRICS.get(objective)) is None:
            return None
        known = [
            (", ".join(target.trivial for target in targets), self._trivial(objective), False),
            (", ".join(target.fitted for target in targets), self._fitted(objective), True),
        ]
        for name, other, is_fitted in known:
            if other >= value - 1e-9 if metric.higher else other <= value + 1e-9:
                return Baseline(name, other, is_fitted)
        return None

    def _trivial(self, metric: str) -> float:
        return trivial(self.splits.train, self.splits.validation).get(metric, math.nan)

    def _fitted(self, metric: str) -> float:
        """Return a metric of the fitted baseline, which the search stores at its end."""
        try:
            return float(self.study.user_attrs[BASELINES]["tfidf"]["metrics"][metric])
        except (KeyError, TypeError, ValueError):  # any program may set the attribute
            return math.nan

    def best(self, top: int = 5) -> list[dict[str, Any]]:
        """Return the best trials, the winner of the race first: number, values, encoder, best
        epoch, metrics, and the contestant of the race or None."""
        rows = []
        order = ranked(self.study.get_trials(deepcopy=False), self.study.directions)
        winner = None if self.race is None else self.race.winner
        order.sort(key=lambda trial: trial.number != winner)
        for trial in order[:top]:
            result = trial.user_attrs.get(RESULT, {})
            rows.append(
                {
                    "trial": trial.number,
                    "values": trial.values,
                    "encoder": plain_params(trial).get("encoder.name"),
                    "best_epoch": result.get("best_epoch"),
                    "metrics": result.get("metrics", {}),
                    "race": None if self.race is None else self.race.of(trial.number),
                }
            )
        return rows

    def winner(self) -> dict[str, Any]:
        """Return the winner of the race, else the best trial, as a row of best(). Raises UserError
        if no trial has a value yet."""
        rows = self.best(1)
        if not rows:
            raise UserError(
                f"No trial of the study '{self.study.study_name}' has a value yet. Run the "
                f"search again to continue."
            )
        return rows[0]

    def config(self, number: int) -> Config:
        """Return the configuration of a trial, to train it again."""
        values = plain_params(self.study.trials[number])
        former = DECODING not in self.study.user_attrs.get(EXPERIMENT, {})
        return configured(self.agent, nest(values), self.limits, former)
