"""A dropout is searched only with encoders that have it."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from supermax.search.search import Search
from supermax.space import Space, loads, sampler_for
from supermax.space.presets import preset
from supermax.tasks.space_fitting import fitted
from supermax.training.data.synthetic import synthetic
from supermax.training.models.encoders import check_dropouts
from supermax.training.models.sources import find

SPACE = """
parameters:
  encoder.name: {choices: [tiny-bert, tiny-eurobert]}
  encoder.dropout: {type: float, low: 0.1, high: 0.3, default: 0.2}
  encoder.attention_dropout: {type: float, low: 0.0, high: 0.3}
"""


def sampled(space: Space, encoder: str) -> dict[str, object]:
    trial = optuna.trial.FixedTrial(
        {"encoder.name": encoder, "encoder.dropout": 0.2, "encoder.attention_dropout": 0.1}
    )
    found: dict[str, object] = space.sample(trial)["encoder"]
    return found


def test_a_dropout_that_one_encoder_lacks_becomes_conditional() -> None:
    fit = fitted(loads(SPACE), "cpu")
    assert "dropout" not in sampled(fit.space, "tiny-eurobert")
    assert sampled(fit.space, "tiny-bert")["dropout"] == 0.2
    assert sampled(fit.space, "tiny-eurobert")["attention_dropout"] == 0.1
    assert (
        "tiny-eurobert has no dropout of hidden states: encoder.dropout is not searched there."
    ) in fit.notices


def test_conditions_of_the_space_still_hold() -> None:
    space = loads(
        SPACE.replace("{type: float, low: 0.1", "{when: optim.lr > 0.1, type: float, low: 0.1")
        + "  optim.lr: {choices: [0.01, 0.5]}\n"
    )
    fitted_space = fitted(space, "cpu").space
    active = {
        (encoder, rate): fitted_space.active(
            "encoder.dropout", {"encoder.name": encoder, "optim.lr": rate}
        )
        for encoder in ("tiny-bert", "tiny-eurobert")
        for rate in (0.01, 0.5)
    }
    assert {key for key, branch in active.items() if branch is not None} == {("tiny-bert", 0.5)}


@pytest.mark.parametrize("models", ["tiny-eurobert", "tiny-bert", "tiny-bert,tiny-eurobert"])
def test_no_configuration_of_joint_sets_a_dropout_that_neither_encoder_has(models: str) -> None:
    fit = fitted(preset("joint", "standard", models=models).space, "cpu")
    study = optuna.create_study(sampler=sampler_for(fit.space, optuna.samplers.RandomSampler(0)))
    for _ in range(40):
        found = fit.space.sample(study.ask())
        pair = [find(found[part]["name"]) for part in ("encoder", "evidence_encoder")]
        check_dropouts(pair, found["encoder"].get("dropout"), None)
    assert any("encoder.dropout" in notice for notice in fit.notices) == ("euro" in models)


def test_a_space_in_which_it_is_always_0_stays_as_it_is() -> None:
    space = loads(SPACE.replace("low: 0.1, high: 0.3, default: 0.2", "low: 0.0, high: 0.0"))
    fit = fitted(space, "cpu")
    assert fit.space == space
    assert not any("dropout" in notice for notice in fit.notices)


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "preloaded")
def test_a_search_with_such_an_encoder_runs(tmp_path: Path) -> None:
    space = preset("criteria", "demo", models="tiny-eurobert").space
    search = Search(
        "criteria",
        synthetic(12, seed=1),
        tmp_path / "s.db",
        tmp_path / "cache",
        space=space,
        trials=1,
        limits={"epochs": 1},
    )
    tuned = search.run(progress=False)
    (trial,) = tuned.study.trials
    assert trial.state == optuna.trial.TrialState.COMPLETE
    assert trial.params["encoder.dropout"] == 0.0
