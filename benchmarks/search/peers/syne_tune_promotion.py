"""Syne Tune 0.13: ASHA that pauses and promotes trials, with random search or MOBSTER."""

from __future__ import annotations

import datetime
import logging
import random
from importlib.metadata import version
from typing import Any

import numpy as np
from serve import Spec, serve
from syne_tune.backend.trial_status import Trial
from syne_tune.optimizer.baselines import ASHA, MOBSTER
from syne_tune_space import config_space


class Promotion:
    def __init__(self, spec: Spec) -> None:
        random.seed(spec.seed)
        np.random.seed(spec.seed)
        logging.getLogger().setLevel(logging.ERROR)
        self._spec = spec
        kind = {"asha": ASHA, "mobster": MOBSTER}[spec.variant]
        self._scheduler = kind(
            config_space(spec),
            metric="loss",
            resource_attr="epoch",
            mode="min",
            type="promotion",
            max_t=spec.epochs,
            grace_period=1,
            reduction_factor=3,
            random_seed=spec.seed,
            search_options={"debug_log": False},
        )
        self._trials: list[Trial] = []

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        number = len(self._trials)
        suggestion = self._scheduler.suggest(number)
        if suggestion is None:
            return None
        if suggestion.spawn_new_trial_id:
            trial = Trial(number, dict(suggestion.config), datetime.datetime.now())
            self._trials.append(trial)
            self._scheduler.on_trial_add(trial)
        else:
            trial = self._trials[suggestion.checkpoint_trial_id]
        return trial.trial_id, {name: trial.config[name] for name in self._spec.space}

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        result = {"epoch": epoch, "loss": loss}
        decision = self._scheduler.on_trial_result(self._trials[trial], result)
        if decision != "CONTINUE":  # also after the last epoch
            self._scheduler.on_trial_remove(self._trials[trial])  # as Tuner does
        return decision == "CONTINUE"


if __name__ == "__main__":
    serve(lambda spec: (version("syne-tune"), Promotion(spec)))
