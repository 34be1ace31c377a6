"""Optuna by ask, report, should_prune and tell. Needs only Optuna: a peer uses it, too."""

from __future__ import annotations

import math

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from tables import Params, Table


class OptunaMethod:
    """Optuna as its tutorial uses it, with an epoch between `report` and `should_prune`."""

    def __init__(
        self, table: Table, sampler: BaseSampler, pruner: BasePruner, name: str = "replay"
    ) -> None:
        """`name`: of the study. HyperbandPruner draws brackets from it."""
        self._table = table
        self._study = optuna.create_study(study_name=name, sampler=sampler, pruner=pruner)
        self._trials: dict[int, optuna.Trial] = {}
        self._lowest: dict[int, float] = {}

    def ask(self) -> tuple[int, Params]:
        trial = self._study.ask(self._table.space)
        self._trials[trial.number] = trial
        return trial.number, trial.params

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        asked = self._trials[trial]
        asked.report(loss, epoch)
        self._lowest[trial] = min(loss, self._lowest.get(trial, math.inf))
        if asked.should_prune():
            self._study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            return False
        if epoch == self._table.epochs:
            self._study.tell(asked, self._lowest[trial])
        return True
