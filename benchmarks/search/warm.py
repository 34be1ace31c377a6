"""Configurations from an earlier search, as --warm-start takes them from a study of the user.

The earlier search is on another task of the family, of the tuning half, with the same budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from tables import Params, Table

from supermax import PriorSampler, Promotion, Space
from supermax.search.earlier import APART, TOP
from supermax.space.seeds import best_configurations


def earlier_task(task: str, seed: int, tuning: Sequence[str]) -> str | None:
    """Return the task of the earlier search, another one for each seed; None: the family has no
    other. Tasks of one data set, which differ in the encoder, are not another task."""
    family = [name for name in tuning if name.split("-")[0] == task.split("-")[0]]
    others = [name for name in family if _data_of(name) != _data_of(task)]
    start = family.index(task) if task in family else 0
    return others[(start + seed) % len(others)] if others else None


def _data_of(task: str) -> str:
    return task.rsplit("-", 1)[0] if task.startswith("tweeteval-") else task


def configurations_of(earlier: Table, *, seed: int, budget: int, workers: int) -> list[Params]:
    """Return the configurations that --warm-start takes from a search on a task, best first."""
    from replay import replay

    sampler = PriorSampler([earlier.defaults], seed=(seed + 1) % 2**32)
    pruner = Promotion(max_reports=earlier.epochs)
    _, study = replay(earlier, sampler, pruner, budget=budget, workers=workers)
    chosen, _ = best_configurations(study, _space_of(earlier), TOP, APART, dict(earlier.defaults))
    return list(chosen.values())


def _space_of(table: Table) -> Space:
    parameters: dict[str, Any] = {}
    for name, domain in table.space.items():
        if isinstance(domain, CategoricalDistribution):
            parameters[name] = {"choices": list(domain.choices)}
            continue
        assert isinstance(domain, FloatDistribution | IntDistribution)
        kind = "int" if isinstance(domain, IntDistribution) else "float"
        ends = {"low": domain.low, "high": domain.high, "log": domain.log}
        parameters[name] = {"type": kind, **ends}
    return Space(name="table", parameters=parameters)
