"""Syne Tune 0.16: ASHA that stops trials, with conformal quantile regression."""

from __future__ import annotations

import datetime
import random
from importlib.metadata import version
from typing import Any

import numpy as np
from serve import Spec, serve
from syne_tune.backend.trial_status import Trial
from syne_tune.optimizer.baselines import ASHACQR
from syne_tune_space import config_space


class SyneTune:
    def __init__(self, spec: Spec) -> None:
        random.seed(spec.seed)
        np.random.seed(spec.seed)  # Syne Tune draws brackets with it
        self._spec = spec
        self._scheduler = ASHACQR(
            config_space(spec),
            metric="loss",
            time_attr="epoch",
            max_t=spec.epochs,
            random_seed=spec.seed,
        )
        self._trials: list[Trial] = []

    def ask(self) -> tuple[int, dict[str, Any]]:
        config = dict(self._scheduler.suggest().config)
        trial = Trial(len(self._trials), config, datetime.datetime.now())
        self._trials.append(trial)
        self._scheduler.on_trial_add(trial)
        return trial.trial_id, {name: config[name] for name in self._spec.space}

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        result = {"epoch": epoch, "loss": loss}
        decision = self._scheduler.on_trial_result(self._trials[trial], result)
        if decision != "CONTINUE":  # also after the last epoch
            self._scheduler.on_trial_remove(self._trials[trial])  # as Tuner does
        return decision == "CONTINUE"


if __name__ == "__main__":
    serve(lambda spec: (version("syne-tune"), SyneTune(spec)))
