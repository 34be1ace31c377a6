"""Search methods that are compared: each searches one table, with the same budget and workers.

supermax…        TPE and Promotion, in the coordinator of a real run (replay.py)
optuna…, random  Optuna without Supermax, by ask, report, should_prune and tell (simulate.py)
replayed-…       the same sampler and pruner in the coordinator of Supermax: must equal them
top-k            random configurations for one epoch, the best ones to the end
syne-tune…, neps…, smac…, auto-sampler   other projects, each in an environment of its own
                 (peer.py)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from peer import PEERS, Peer
from simulate import Replay, simulate
from tables import Params, Table

if TYPE_CHECKING:
    from supermax import Promotion


@dataclass(frozen=True)
class Setting:
    """Conditions of a search, the same for all contenders."""

    seed: int
    budget: int
    """Epochs."""
    workers: int
    pythons: Mapping[str, Path] = field(default_factory=dict)
    """By project: interpreter of the environment in which it is installed."""


Contender = Callable[[Table, Setting], Replay]


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


class TopK:
    """One epoch of random configurations for half of the budget, then the rest of the best."""

    def __init__(self, table: Table, setting: Setting) -> None:
        self._table = table
        self._screened = math.ceil(setting.budget / 2)
        self._sampler = OptunaMethod(table, RandomSampler(seed=setting.seed), NopPruner())
        self._params: list[Params] = []
        self._losses: list[tuple[float, int]] = []
        self._chosen: list[int] | None = None

    def ask(self) -> tuple[int, Params] | None:
        if len(self._params) < self._screened:
            number, params = self._sampler.ask()
            self._params.append(params)
            return number, params
        if len(self._losses) < self._screened:
            return None
        if self._chosen is None:
            self._chosen = [number for _, number in sorted(self._losses, reverse=True)]
        number = self._chosen.pop()
        return number, self._params[number]

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        if epoch == 1:
            self._losses.append((loss, trial))
        return epoch > 1


def _optuna(
    sampler: Callable[[int], BaseSampler], pruner: Callable[[], BasePruner], *, replayed: bool
) -> Contender:
    def search(table: Table, setting: Setting) -> Replay:
        drawn, name = sampler(setting.seed), f"seed-{setting.seed}"
        budget, workers = setting.budget, setting.workers
        if not replayed:
            method = OptunaMethod(table, drawn, pruner(), name)
            return simulate(table, method, budget=budget, workers=workers)
        from replay import replay

        return replay(table, drawn, pruner(), budget=budget, workers=workers, name=name)

    return search


def _supermax(*, defaults_first: bool = False, **options: Any) -> Contender:
    """Return the search of Supermax, with these options of Promotion."""

    def search(table: Table, setting: Setting) -> Replay:
        from replay import replay

        sampler = TPESampler(multivariate=True, seed=setting.seed)
        first = table.defaults if defaults_first else None
        budget, workers = setting.budget, setting.workers
        pruner = _promotion(options)
        return replay(table, sampler, pruner, budget=budget, workers=workers, first=first)

    return search


def _promotion(options: dict[str, Any]) -> Promotion:
    from supermax import Promotion

    return Promotion(**options)


def _top_k(table: Table, setting: Setting) -> Replay:
    method = TopK(table, setting)
    return simulate(table, method, budget=setting.budget, workers=setting.workers)


def _peer(name: str) -> Contender:
    def search(table: Table, setting: Setting) -> Replay:
        project = PEERS[name].project
        if project not in setting.pythons:
            raise ValueError(f"{name} needs --python {project}=PATH.")
        seed, budget, workers = setting.seed, setting.budget, setting.workers
        python = setting.pythons[project]
        peer = Peer(name, table, seed=seed, budget=budget, workers=workers, python=python)
        with peer:
            return simulate(table, peer, budget=budget, workers=workers)

    return search


def _tpe(seed: int) -> BaseSampler:
    return TPESampler(seed=seed)


def _random(seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


BASELINE = "optuna"
CONTENDERS: dict[str, Contender] = {
    "supermax": _supermax(),
    "supermax-defaults-first": _supermax(defaults_first=True),
    "supermax-factor-2": _supermax(reduction_factor=2),
    "supermax-factor-4": _supermax(reduction_factor=4),
    "supermax-trust-all": _supermax(min_agreement=-1.0),
    "supermax-trust-0.7": _supermax(min_agreement=0.7),
    "supermax-no-run-through": _supermax(run_through=0.0),
    "supermax-no-promotion": _optuna(_tpe, NopPruner, replayed=True),
    BASELINE: _optuna(_tpe, MedianPruner, replayed=False),
    "optuna-hyperband": _optuna(_tpe, HyperbandPruner, replayed=False),
    "optuna-no-pruning": _optuna(_tpe, NopPruner, replayed=False),
    "replayed-optuna": _optuna(_tpe, MedianPruner, replayed=True),
    "replayed-optuna-hyperband": _optuna(_tpe, HyperbandPruner, replayed=True),
    "replayed-random": _optuna(_random, NopPruner, replayed=True),
    "random": _optuna(_random, NopPruner, replayed=False),
    "top-k": _top_k,
    **{name: _peer(name) for name in PEERS},
}


def search(contender: str, table: Table, setting: Setting) -> Replay:
    """Search a table with a contender."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    np.seterr(all="ignore")
    return CONTENDERS[contender](table, setting)
