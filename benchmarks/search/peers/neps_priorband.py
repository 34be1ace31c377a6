"""NePS: PriorBand with the defaults of the table as prior, of medium confidence."""

from __future__ import annotations

import math
import random
from importlib.metadata import version
from typing import Any

import neps
import numpy as np
import torch
from serve import Spec, serve

_FIDELITY = "epochs"


def search_space(spec: Spec) -> neps.SearchSpace:
    elements: dict[str, Any] = {}
    for name, domain in spec.space.items():
        prior = {"prior": spec.defaults[name], "prior_confidence": "medium"}
        if "choices" in domain:
            elements[name] = neps.HPOCategorical(domain["choices"], **prior)
            continue
        kind = neps.HPOFloat if domain["type"] == "float" else neps.HPOInteger
        elements[name] = kind(domain["low"], domain["high"], log=domain["log"], **prior)
    elements[_FIDELITY] = neps.HPOInteger(1, spec.epochs, is_fidelity=True)
    return neps.SearchSpace(elements)


class PriorBand:
    """A configuration with a number of epochs is told its lowest loss up to there."""

    def __init__(self, spec: Spec) -> None:
        random.seed(spec.seed)
        np.random.seed(spec.seed)
        torch.manual_seed(spec.seed)
        self._names = list(spec.space)
        self._optimizer = neps.AskAndTell(neps.algorithms.priorband(search_space(spec)))
        self._lowest: dict[int, float] = {}
        self._reached: dict[int, int] = {}
        self._running: dict[int, neps.Trial] = {}

    def ask(self) -> tuple[int, dict[str, Any]]:
        while True:
            trial = self._optimizer.ask()
            number = int(trial.id.split("_")[0])  # "3_rung_1": configuration 3
            if self._reached.get(number, 0) < round(trial.config[_FIDELITY]):
                break
            self._optimizer.tell(trial, self._lowest[number])
        self._running[number] = trial
        return number, {name: trial.config[name] for name in self._names}

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        self._lowest[trial] = min(loss, self._lowest.get(trial, math.inf))
        self._reached[trial] = epoch
        if epoch < round(self._running[trial].config[_FIDELITY]):
            return True
        self._optimizer.tell(self._running.pop(trial), self._lowest[trial])
        return False


if __name__ == "__main__":
    serve(lambda spec: (version("neural-pipeline-search"), PriorBand(spec)))
