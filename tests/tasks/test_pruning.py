"""Pruning by the training loop: an epoch without a finite value does not prune a trial."""

from __future__ import annotations

import math

import optuna
import pytest
from optuna.trial import create_trial

from supermax.search.prepare import pruner_of
from supermax.search.settings import Settings
from supermax.tasks.objective import TrialReporter


@pytest.mark.parametrize("name", ["median", "hyperband", "halving"])
def test_a_trial_whose_first_epoch_has_no_value_can_recover(name: str) -> None:
    settings = Settings.model_validate(
        {"agent": "criteria", "trials": 9, "epochs": 6, "pruner": name}
    )
    study = optuna.create_study(direction="maximize", pruner=pruner_of(settings))
    for value in (0.5, 0.6, 0.7, 0.5, 0.6, 0.7):
        curve = dict.fromkeys(range(1, 7), value)
        study.add_trial(create_trial(value=value, intermediate_values=curve))
    for _ in range(8):  # hyperband deals trials to brackets
        reporter = TrialReporter(study.ask())
        for epoch, value in enumerate([math.nan, 0.8, math.nan, 0.9], 1):
            reporter.report(value, epoch)
            assert not reporter.should_prune(), (epoch, value)
    poor = [TrialReporter(study.ask()) for _ in range(8)]
    pruned = 0
    for reporter in poor:
        for epoch in range(1, 7):
            reporter.report(0.01, epoch)
            if reporter.should_prune():
                pruned += 1
                break
    assert pruned
