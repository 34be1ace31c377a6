"""Noise of a trial's value: of the rows it is measured on, and of its seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import optuna
import pytest

from supermax._util.attributes import RACE, RESULT
from supermax.engine.run.no_gain import WhenNoGain
from supermax.results.noise import noise_of, spread_over_seeds
from supermax.results.race import Contestant, RaceRecord
from supermax.search.stopping import with_noise

ROWS = {"confusion": [[40, 10], [10, 40]]}  # accuracy 0.8 on 100 rows


def race(*scores: tuple[float | None, ...]) -> RaceRecord:
    each = [Contestant(i, 0.8, one, 0.8, None, False) for i, one in enumerate(scores)]
    return RaceRecord((2, 3, 4), tuple(each), 0)


def test_noise_of_an_accuracy_is_its_standard_error() -> None:
    found = noise_of(ROWS, "accuracy", 0.8)
    assert found == pytest.approx(math.sqrt(0.8 * 0.2 / 100), rel=0.05)


def test_noise_of_a_mean_over_spans_has_a_bound() -> None:
    spans = {"spans": {"exact": 60, "missed": 40}}
    assert noise_of(spans, "token_f1", 0.7) == pytest.approx(math.sqrt(0.7 * 0.3 / 100))


def test_spread_over_seeds_is_pooled_and_added() -> None:
    shown = race((0.70, 0.72, 0.74), (0.80, 0.82, 0.84), (0.5, None))
    assert spread_over_seeds(shown) == pytest.approx(0.02)
    both = noise_of(ROWS, "accuracy", 0.8, shown)
    assert both == pytest.approx(math.hypot(0.04, 0.02), rel=0.05)
    assert spread_over_seeds(race((0.7,))) is None


def test_spread_over_folds_has_the_error_of_the_rows_already() -> None:
    shown = race((0.70, 0.90), (0.60, 0.80))
    folds = replace(shown, contestants=tuple(replace(c, unit="fold") for c in shown.contestants))
    assert spread_over_seeds(folds) is None
    assert noise_of(ROWS, "accuracy", 0.8, folds) == noise_of(ROWS, "accuracy", 0.8)


@pytest.mark.parametrize(
    "result",
    [None, 3, {}, {"confusion": "x"}, {"confusion": [[1, 2], [3]]}, {"spans": {"a": "b"}}],
)
def test_unknown_noise_is_none(result: Any) -> None:
    assert noise_of(result, "accuracy", 0.8) is None
    assert noise_of(result, "token_f1", 0.8) is None
    assert noise_of(ROWS, "auroc", 0.8) is None


def test_search_ends_by_the_noise_of_its_metric() -> None:
    study = optuna.create_study(direction="maximize")
    study.set_user_attr(RACE, race((0.78, 0.82)).data())
    trial = study.ask()
    trial.set_user_attr(RESULT, ROWS)
    study.tell(trial, 0.8)
    rule = with_noise(WhenNoGain(), study, "accuracy")
    assert rule is not None
    expected = math.hypot(0.04, 0.02 * math.sqrt(2))
    assert rule.noise_of(study.best_trial) == pytest.approx(expected, rel=0.05)
    given = WhenNoGain(0.5)
    assert with_noise(given, study, "accuracy") is given
    assert with_noise(None, study, "accuracy") is None
