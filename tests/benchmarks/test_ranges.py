"""Searches with other ranges than the recorded ones."""

from __future__ import annotations

import numpy as np
from optuna.distributions import FloatDistribution

from tests.benchmarks import toy  # noqa: F401, sets the path

import curves  # isort: skip
import ranges  # isort: skip


def test_a_range_without_good_values_costs_regret() -> None:
    task = f"tweeteval-{curves.tuning_tasks()[0]}"
    whole = ranges.regrets(task, {}, 0)
    assert whole == sorted(whole, reverse=True)
    rates = {"optim.lr": FloatDistribution(1e-5, 1.1e-5, log=True)}
    assert ranges.regrets(task, rates, 0)[-1] > whole[-1] + 0.1


def test_a_difference_has_its_standard_error() -> None:
    assert ranges.difference(np.array([0.1, 0.3])) == "+0.200 (0.100)"
