"""A search that is no better than the trivial baseline reports it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import optuna
import pytest
from optuna.trial import create_trial

from supermax._util.attributes import BASELINES, RESULT
from supermax.engine.gain import Gain
from supermax.engine.summary import NO_GAIN, Summary
from supermax.results.race import Contestant, RaceRecord, Unit
from supermax.search.settings import Settings, resolve
from supermax.search.settings.resolving import Value
from supermax.search.tuned import Tuned
from supermax.space.presets import presets
from supermax.training.data.splits import Splits
from supermax.ui.cli.outcome import outcome
from tests.training.corpora import corpus, labelled, numeric, tagged

SPLITS = Splits(corpus(40, 1), corpus(30, 2), corpus(20, 3))
NOTHING = Summary()
FITTED = 0.85
"""Macro F1 of the fitted baseline."""
SILENT = sum(not example.spans for example in SPLITS.validation.spans) / len(
    SPLITS.validation.spans
)


KINDS = {
    "regression": ("r2", numeric, "mean"),
    "multilabel": ("macro_f1", labelled, "every label"),
    "token-classification": ("entity_f1", tagged, "most frequent tag of each word"),
}


def said(
    agent: str,
    objective: str,
    value: float,
    summary: Summary = NOTHING,
    race: RaceRecord | None = None,
    splits: Splits = SPLITS,
    **how: Any,
) -> str:
    study = optuna.create_study()
    study.set_user_attr(BASELINES, {"tfidf": {"metrics": {"macro_f1": FITTED}}})
    study.add_trial(create_trial(value=value, user_attrs={RESULT: {"encoder": "tiny"}}))
    tuned = Tuned(agent, study, summary, splits, cast("Any", None), [objective], {}, race)
    settings = Settings(**{"agent": agent, "trials": 1, "epochs": 1, **how})
    return "\n".join(outcome(settings, tuned))


@pytest.mark.parametrize("value", [SILENT, SILENT - 0.1])
def test_a_span_search_that_answers_nothing_is_reported(value: float) -> None:
    assert 0 < SILENT < 1
    told = said("evidence", "token_f1", value)
    baseline = f"which has token_f1 {SILENT:.4f}"
    assert f"the trivial baseline (no answer), {baseline}" in told
    assert f"token_f1 {value:.4f} (validation, n={len(SPLITS.validation.spans)})." in told


@pytest.mark.parametrize("agent", KINDS)
def test_the_baseline_of_each_kind_is_named(agent: str) -> None:
    metric, made, kind = KINDS[agent]
    splits = Splits(made(40, 1), made(30, 2), made(20, 3))
    told = said(agent, metric, -1.0, splits=splits)
    assert f"no better than the trivial baseline ({kind}), which has {metric} " in told


@pytest.mark.parametrize("running", [0, 1])
def test_the_next_commands_name_the_storage(running: int) -> None:
    summary = Summary({"RUNNING": running}, stopped_by="interrupt")
    told = said("criteria", "macro_f1", 0.9, summary, storage="other.db")
    assert told.count("--storage other.db") == 2
    assert ("from their last checkpoint" in told) is bool(running)


def test_a_perfect_baseline_is_not_answered_with_more_epochs() -> None:
    classes = SPLITS.train.classes
    usual = Counter(example.label for example in classes).most_common(1)[0][0]
    alike = replace(SPLITS.validation, classes=tuple(e for e in classes if e.label == usual))
    told = said("criteria", "accuracy", 1.0, splits=replace(SPLITS, validation=alike))
    assert "majority class), which has accuracy 1.0000. No model can do better" in told
    assert "more epochs" not in told
    assert "more epochs" in said("criteria", "accuracy", 0.1)


def test_one_that_is_better_than_the_trivial_baseline_but_not_than_the_fitted_one() -> None:
    told = said("criteria", "macro_f1", 0.8)
    assert "no better than the fitted baseline (TF-IDF with logistic regression)" in told
    assert "which has macro_f1 0.8500. Try a pretrained encoder" in told
    assert "baseline" not in said("criteria", "macro_f1", 0.86)
    assert "baseline" not in said("criteria", "accuracy", 0.99)


def test_one_that_learns_is_not() -> None:
    assert "trivial baseline" not in said("evidence", "token_f1", SILENT + 0.01)
    assert "trivial baseline" not in said("criteria", "macro_f1", 0.9)
    assert "trivial baseline" in said("criteria", "macro_f1", 0.3)
    assert "trivial baseline" not in said("criteria", "model_size", 10.0)


@pytest.mark.parametrize("unit", ["seed", "fold"])
def test_the_baseline_of_one_split_is_named_beside_a_mean_over_folds(unit: Unit) -> None:
    scores = (0.30, 0.32)
    raced = Contestant(0, 0.9, scores, sum(scores) / 2, 0.01, stopped=False, unit=unit)
    told = said("criteria", "macro_f1", 0.9, race=RaceRecord((1, 2), (raced,), 0))
    assert f"over 2 {unit}s" in told
    assert ("on the validation split alone. Try" in told) is (unit == "fold")
    assert "trivial baseline" in told


def test_search_that_ended_by_itself_says_why_and_how_to_go_on() -> None:
    expected = Gain(60, 30, 0.002, 0.012)
    summary = Summary({"COMPLETE": 60}, stopped_by=NO_GAIN, gain=expected)
    told = said("criteria", "macro_f1", 0.9, summary, trials=200)
    why = "no further gain is expected (expected gain of the next 30 trials: 0.002, noise 0.012)"
    assert f"ended by itself after 60 of 200 trials, since {why}" in told
    assert "Paused" not in told
    assert "To go on, add --stop never." in told
    assert "by itself" not in said("criteria", "macro_f1", 0.9, summary, trials=60)
    stopping, going_on = (
        resolve("criteria", flags={"stop": Value(stop, "--stop")}, presets=presets()).settings
        for stop in ("when_no_gain", "never")
    )
    assert (stopping.stop, going_on.stop) == ("when_no_gain", "never")
