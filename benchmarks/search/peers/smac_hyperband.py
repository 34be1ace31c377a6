"""SMAC3: random forest with Hyperband, as its multi-fidelity facade has them."""

from __future__ import annotations

import logging
import math
import tempfile
from importlib.metadata import version
from typing import Any

from ConfigSpace import Categorical, Configuration, ConfigurationSpace, Float, Integer
from serve import Spec, serve
from smac import MultiFidelityFacade, Scenario
from smac.runhistory.dataclasses import TrialInfo, TrialValue


def config_space(spec: Spec) -> ConfigurationSpace:
    space = ConfigurationSpace(seed=spec.seed)
    for name, domain in spec.space.items():
        if "choices" in domain:
            space.add(Categorical(name, domain["choices"]))
            continue
        kind = Float if domain["type"] == "float" else Integer
        space.add(kind(name, (domain["low"], domain["high"]), log=domain["log"]))
    return space


class Smac:
    """A configuration with a budget is told its lowest loss up to there."""

    def __init__(self, spec: Spec) -> None:
        scenario = Scenario(
            config_space(spec),
            deterministic=True,
            n_trials=spec.budget,
            min_budget=1,
            max_budget=spec.epochs,
            seed=spec.seed,
            output_directory=tempfile.mkdtemp(prefix="smac-"),
        )
        self._smac = MultiFidelityFacade(
            scenario, lambda config, seed, budget: 0.0, logging_level=logging.ERROR, overwrite=True
        )
        self._numbers: dict[Configuration, int] = {}
        self._reached: dict[int, int] = {}
        self._lowest: dict[int, float] = {}
        self._running: dict[int, TrialInfo] = {}

    def ask(self) -> tuple[int, dict[str, Any]]:
        while True:
            info = self._smac.ask()
            number = self._numbers.setdefault(info.config, len(self._numbers))
            if self._reached.get(number, 0) < round(info.budget):
                break
            self._tell(info, number)
        self._running[number] = info
        values = dict(info.config)  # of numpy's types, some of them
        return number, {name: getattr(v, "item", lambda v=v: v)() for name, v in values.items()}

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        self._reached[trial] = epoch
        self._lowest[trial] = min(loss, self._lowest.get(trial, math.inf))
        if epoch < round(self._running[trial].budget):
            return True
        self._tell(self._running.pop(trial), trial)
        return False

    def _tell(self, info: TrialInfo, number: int) -> None:
        self._smac.tell(info, TrialValue(cost=self._lowest[number]), save=False)


if __name__ == "__main__":
    serve(lambda spec: (version("smac"), Smac(spec)))
