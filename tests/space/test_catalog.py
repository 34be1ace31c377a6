"""Spaces of the package, presets, and narrowing by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from supermax import UserError
from supermax.agents import AGENTS
from supermax.space import flatten, load, sampler_for, shipped
from supermax.space.presets import preset, presets

SEVEN = [
    "bert-base-uncased",
    "bert-large-uncased",
    "roberta-base",
    "roberta-large",
    "microsoft/deberta-v3-base",
    "microsoft/deberta-v3-large",
    "xlm-roberta-base",
]


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_space_is_valid_and_its_defaults_are_feasible(name: str) -> None:
    space = load(name)
    defaults = space.defaults()
    assert defaults is not None
    assert space.mistakes(defaults) == []
    study = optuna.create_study(sampler=sampler_for(space, "tpe", seed=0))

    def objective(trial: optuna.Trial) -> float:
        config = space.sample(trial)
        assert space.mistakes(flatten(config)) == []
        return float(trial.number)

    study.optimize(objective, n_trials=15)
    assert space.description


def test_all_four_agents_are_there_in_every_form() -> None:
    folders = ("", "classic/", "demo/", "standard/", "modern/")
    wanted = {f"{folder}{agent}" for folder in folders for agent in AGENTS}
    assert set(shipped()) == wanted


def test_the_template_of_the_package_is_no_space_and_a_like_named_file_is_read_as_it_is(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="no space file"):
        load("classic/_agent")
    own = tmp_path / "_agent.yaml"
    own.write_text('extends: criteria\ndescription: "Of {agent}"')
    assert load(own).description == "Of {agent}"


def test_the_effective_batch_is_searched_and_execution_is_not() -> None:
    products = {b * a for b in (8, 12, 16, 24, 32, 48, 64) for a in (1, 2, 3, 4, 6, 8)}
    for agent in AGENTS:
        space = load(agent)
        (branch,) = space.parameters["train.effective_batch"].branches
        assert branch.choices == tuple(sorted(products))  # type: ignore[union-attr]
        assert not [n for n in space.parameters if "accum" in n or "checkpointing" in n]
        assert 25 <= len(space.parameters) <= 42
        assert space.parameters["encoder.name"].branches[0].choices == tuple(SEVEN)  # type: ignore[union-attr]


def test_classic_keeps_the_pair_and_its_condition() -> None:
    space = load("classic/criteria")
    assert "train.effective_batch" not in space.parameters
    assert {"train.batch_size", "train.grad_accum"} <= set(space.parameters)
    large, other = space.parameters["train.batch_size"].branches
    assert max(large.choices) == 16  # type: ignore[union-attr,type-var]
    assert max(other.choices) == 64  # type: ignore[union-attr,type-var]
    where = space.active("train.batch_size", {"encoder.name": "roberta-large"})
    assert where == 0


def test_evidence_has_the_parameters_of_spans() -> None:
    criteria, evidence = load("criteria"), load("evidence")
    spans = {"text.doc_stride", "train.negative_ratio"}
    assert spans <= set(evidence.parameters)
    assert not spans & set(criteria.parameters)
    assert "head.pooling" not in evidence.parameters
    for agent in ("share", "joint"):
        assert spans | {"head.pooling", "loss.evidence_weight"} <= set(load(agent).parameters)
    assert "evidence_encoder.name" in load("joint").parameters


def test_presets_have_documented_trials_and_epochs() -> None:
    known = presets()
    assert all(tuple(size["trials"]) == AGENTS for size in known.values())
    assert [known["max"]["trials"][a] for a in AGENTS] == [800, 1200, 600, 600, 800, 800, 800]
    assert [known["supermax"]["trials"][a] for a in AGENTS] == [
        *(5000, 8000, 3000, 3000, 5000, 5000, 5000)
    ]
    one = preset("evidence", "supermax")
    assert (one.trials, one.epochs, one.patience) == (8000, 100, 20)
    assert preset("joint", "demo").space.parameters["evidence_encoder.name"].branches[
        0
    ].choices == (  # type: ignore[union-attr]
        "tiny",
    )


def choices(space: Any, name: str) -> tuple[Any, ...]:
    return tuple(space.parameters[name].branches[0].choices)


def test_models_are_narrowed_by_flag_and_environment() -> None:
    environment = {"HPO_MODEL_CHOICES": "roberta-base, bert-large-uncased"}
    one = preset("criteria", environment=environment).space
    assert choices(one, "encoder.name") == ("roberta-base", "bert-large-uncased")
    assert one.parameters["encoder.name"].branches[0].default == "roberta-base"
    flag = preset("joint", models="xlm-roberta-base", environment=environment).space
    assert choices(flag, "encoder.name") == ("xlm-roberta-base",)
    assert choices(flag, "evidence_encoder.name") == ("xlm-roberta-base",)
    own = preset("joint", models="minilm, /my/encoder, minilm").space
    assert choices(own, "evidence_encoder.name") == ("minilm", "/my/encoder")
    assert (own.defaults() or {})["encoder.name"] == "minilm"
    # A condition on encoders that are gone is no mistake.
    classic = preset("criteria", models="roberta-base", classic=True).space
    assert classic.active("train.batch_size", {"encoder.name": "roberta-base"}) == 1
    fixed = preset("criteria", narrow={"optim.lr": {"high": 2e-5}, "train.clip": 1.0}).space
    assert fixed.parameters["train.clip"].branches[0].contains(1.0)
    assert not fixed.parameters["train.clip"].branches[0].contains(2.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"agent": "critera"}, "did you mean 'criteria'"),
        ({"agent": "criteria", "name": "supermx"}, "did you mean 'supermax'"),
        ({"agent": "criteria", "narrow": {"optim.lrr": 1}}, "did you mean 'optim.lr'"),
    ],
)
def test_unknown_names_are_reported(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        preset(**arguments)
