"""Search that has run, with its best configurations.

Search.run() ──▶ Tuned ──▶ winner, best trials, Config
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.study import Study

from supermax._util.attributes import EXPERIMENT, RESULT, plain_params
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

    def trivial_baseline(self, value: float) -> float | None:
        """Return the first objective of the trivial baseline (`Target.trivial`); None
        where `value` is better, or the baseline has no such metric."""
        metric = METRICS.get(self.objectives[0])
        baseline = trivial(self.splits.train, self.splits.validation).get(self.objectives[0])
        if metric is None or baseline is None or math.isnan(baseline):
            return None
        better = value > baseline + 1e-9 if metric.higher else value < baseline - 1e-9
        return None if better else baseline

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
