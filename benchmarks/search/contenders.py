"""Search methods that are compared: each searches one table, with the same budget and workers.

supermax         PriorSampler with a portfolio and Promotion, in the coordinator of a real run
                 (replay.py)
supermax-no-…    one part less. no-portfolio: nothing is known beforehand
supermax-defaults   one configuration chosen by hand instead of the portfolio
supermax-warm       the same, and the best ones of an earlier search on another task (warm.py);
                    supermax-portfolio-warm: these after the portfolio
supermax-gp…        GPSampler instead of TPE
supermax-…univariate   TPE with multivariate=False
supermax-mixture…   the mixture of PriorSampler instead of TPE after the known configurations
optuna…, random  Optuna without Supermax, by ask, report, should_prune and tell (simulate.py)
replayed-…       the same sampler and pruner in the coordinator of Supermax: must equal them
top-k            random configurations for one epoch, the best ones to the end
syne-tune…, neps…, smac…, auto-sampler   other projects, each in an environment of its own
                 (peer.py)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna_method import OptunaMethod
from peer import PEERS, Peer
from portfolio import portfolio_of
from simulate import Replay, simulate
from tables import Params, Table


@dataclass(frozen=True)
class Setting:
    """Conditions of a search, the same for all contenders."""

    seed: int
    budget: int
    """Epochs."""
    workers: int
    pythons: Mapping[str, Path] = field(default_factory=dict)
    """By project: interpreter of the environment in which it is installed."""
    earlier: Table | None = None
    """Task of an earlier search of the user."""


Contender = Callable[[Table, Setting], Replay]


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

        return replay(table, drawn, pruner(), budget=budget, workers=workers, name=name)[0]

    return search


def _supermax(
    *,
    known: Callable[[Table], Sequence[Params]] = portfolio_of,
    mixture: bool = False,
    promotion: bool = True,
    multivariate: bool = True,
    **options: Any,
) -> Contender:
    """Return the search of Supermax. `known`: configurations to begin with. `mixture`: draw the
    others from the mixture of PriorSampler instead of TPE. `multivariate`: of TPE. `options`: of
    Promotion."""

    def search(table: Table, setting: Setting) -> Replay:
        from replay import replay

        from supermax import PriorSampler, Promotion

        first = list(known(table))
        tpe = TPESampler(multivariate=multivariate, seed=setting.seed)
        sampler = PriorSampler(first, mixture=mixture, tpe=tpe, seed=setting.seed)
        pruner: BasePruner = NopPruner()
        if promotion:
            pruner = Promotion(**{"max_reports": table.epochs, **options})
        budget, workers = setting.budget, setting.workers
        return replay(table, sampler, pruner, budget=budget, workers=workers)[0]

    return search


def _gp(
    known: Callable[[Table], Sequence[Params]], pruner: Callable[[Table], BasePruner]
) -> Contender:
    """Return the search with Optuna's GPSampler, after known configurations."""

    def search(table: Table, setting: Setting) -> Replay:
        from replay import replay

        sampler = GPSampler(seed=setting.seed, warn_independent_sampling=False)
        budget, workers, first = setting.budget, setting.workers, list(known(table))
        found = replay(table, sampler, pruner(table), budget=budget, workers=workers, known=first)
        return found[0]

    return search


def _promotion(table: Table) -> BasePruner:
    from supermax import Promotion

    return Promotion(max_reports=table.epochs)


def _warm(known: Callable[[Table], Sequence[Params]]) -> Contender:
    """Return the search of Supermax with configurations of an earlier search after the known
    ones."""

    def search(table: Table, setting: Setting) -> Replay:
        from warm import configurations_of

        if setting.earlier is None:
            raise ValueError(f"There is no other task in the family of {table.name}.")
        seed, budget, workers = setting.seed, setting.budget, setting.workers
        taken = configurations_of(setting.earlier, seed=seed, budget=budget, workers=workers)
        return _supermax(known=lambda _: [*known(table), *taken])(table, setting)

    return search


def _defaults(table: Table) -> list[Params]:
    return [table.defaults]


def _none(table: Table) -> list[Params]:
    return []


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
    "supermax-no-promotion": _supermax(promotion=False),
    "supermax-defaults": _supermax(known=_defaults),
    "supermax-defaults-no-promotion": _supermax(known=_defaults, promotion=False),
    "supermax-warm": _warm(_defaults),
    "supermax-portfolio-warm": _warm(portfolio_of),
    "supermax-no-portfolio": _supermax(known=_none),
    "supermax-univariate": _supermax(multivariate=False),
    "supermax-defaults-univariate": _supermax(known=_defaults, multivariate=False),
    "supermax-no-portfolio-univariate": _supermax(known=_none, multivariate=False),
    "supermax-gp": _gp(portfolio_of, _promotion),
    "supermax-gp-defaults": _gp(_defaults, _promotion),
    "supermax-gp-no-portfolio": _gp(_none, _promotion),
    "supermax-gp-no-portfolio-no-promotion": _gp(_none, lambda _: NopPruner()),
    "supermax-mixture": _supermax(mixture=True),
    "supermax-mixture-no-promotion": _supermax(mixture=True, promotion=False),
    "supermax-mixture-defaults": _supermax(mixture=True, known=_defaults),
    "supermax-mixture-no-portfolio": _supermax(mixture=True, known=_none),
    "supermax-unknown-length": _supermax(max_reports=None),
    "supermax-trust-all": _supermax(min_agreement=-1.0),
    "supermax-through-5": _supermax(run_through=0.05),
    "supermax-through-33": _supermax(run_through=0.33),
    "supermax-through-50": _supermax(run_through=0.5),
    "replayed-no-pruning": _optuna(_tpe, NopPruner, replayed=True),
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
