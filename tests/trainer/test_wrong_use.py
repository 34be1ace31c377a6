"""Arguments that cannot work are named before a trial exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import Trainer

import supermax
from tests.trainer import tiny
from tests.trainer.test_search import search


def error_of(trainer: Any, **options: Any) -> str:
    """Return the error of a search that must not begin."""
    with pytest.raises(supermax.UserError) as caught:
        search(trainer, **options)
    return str(caught.value)


def test_a_trainer_without_model_init(tmp_path: Path) -> None:
    trainer = Trainer(
        model=tiny.classifier(),
        args=tiny.arguments(tmp_path),
        train_dataset=tiny.rows(4),
        eval_dataset=tiny.rows(4),
    )
    assert "has no model_init. Pass Trainer(model_init=…)" in error_of(trainer)


def test_a_function_without_a_direction(tmp_path: Path) -> None:
    message = error_of(lambda: tiny.trainer(tmp_path))
    assert "direction is missing" in message
    assert "Pass direction='minimize' or direction='maximize'" in message


def test_load_if_exists_with_a_space(tmp_path: Path) -> None:
    space = supermax.space.loads("name: tiny\nparameters:\n  learning_rate: {choices: [1e-3]}")
    message = error_of(tiny.trainer(tmp_path), hp_space=space, load_if_exists=False)
    assert "load_if_exists=False has no effect with a Space" in message


def test_a_model_init_with_two_arguments(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path)
    trainer.model_init = lambda trial, more: tiny.classifier()
    assert "model_init should have 0 or 1 argument, but has 2" in error_of(trainer)


def test_no_data_to_evaluate_on(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, eval_dataset=None, arguments={"eval_strategy": "no"})
    assert "has no eval_dataset" in error_of(trainer)


@pytest.mark.parametrize("backend", ["ray", "wandb"])
def test_backends_of_others(backend: str, tmp_path: Path) -> None:
    assert f"backend is '{backend}'" in error_of(tiny.trainer(tmp_path), backend=backend)


def test_an_unknown_backend(tmp_path: Path) -> None:
    error = error_of(tiny.trainer(tmp_path), backend="hyperopt")
    assert error == "There is no backend 'hyperopt'. Leave it out, or pass 'optuna'."


def test_names_that_are_no_training_arguments(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rte": trial.suggest_float("lr", 0, 1), "epochs_in_all": 3}

    error = error_of(tiny.trainer(tmp_path), hp_space=space, run_dir=tmp_path / "run")
    assert "'learning_rte'; did you mean 'learning_rate'?" in error
    assert "'epochs_in_all'" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_name_that_only_trials_meet(tmp_path: Path) -> None:
    """Such as one in a branch of hp_space: trials fail, and say which name it is."""

    def space(trial: Any) -> dict[str, Any]:
        return {"warmup_staps": 1} if hasattr(trial, "attempt") else {}

    trainer = tiny.trainer(tmp_path)
    with pytest.raises(supermax.SupermaxError, match=r"warmup_staps"):
        search(trainer, hp_space=space, n_trials=4, run_dir=tmp_path / "run")


def test_names_for_a_model_init_that_takes_the_trial(tmp_path: Path) -> None:
    from supermax.trainer.hyperparameters import check_argument_names

    trainer = tiny.trainer(tmp_path)
    trainer.model_init = lambda trial: tiny.classifier()
    check_argument_names(trainer, {"dropout": 0.1})


def test_a_space_that_returns_no_dict(tmp_path: Path) -> None:
    error = error_of(tiny.trainer(tmp_path), hp_space=lambda trial: [1])
    assert "hp_space must return a dict of training arguments, but returned [1]" in error


def test_unknown_options(tmp_path: Path) -> None:
    error = error_of(tiny.trainer(tmp_path), worker=3, resources_per_trial={"gpu": 1}, planner=1)
    assert "worker; did you mean 'workers'?" in error
    assert "resources_per_trial: it belongs to Ray; pass workers and devices" in error
    assert "planner: a search with a Trainer splits batches by itself" in error


def test_two_names_of_one_option(tmp_path: Path) -> None:
    assert "two names of one argument" in error_of(tiny.trainer(tmp_path), workers=2, n_jobs=2)


def test_another_direction_than_that_of_the_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    optuna.create_study(storage=url, study_name="s", direction="maximize")
    error = error_of(tiny.trainer(tmp_path), storage=url, study_name="s")
    assert "is there with direction maximize, and this call says minimize" in error


def test_something_else_than_a_trainer(tmp_path: Path) -> None:
    assert "trainer must be a transformers.Trainer" in error_of("trainer")


def test_a_trainer_of_another_library(tmp_path: Path) -> None:
    class Other:
        def train(self) -> None: ...

    assert "Other is no Trainer of transformers or SetFit" in error_of(Other())


def test_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tiny.trainer(tmp_path)
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    assert "started as 2 processes" in error_of(trainer)


@pytest.mark.parametrize("direction", ["max", 3, [], ["minimize", "up"]])
def test_a_wrong_direction(direction: Any, tmp_path: Path) -> None:
    error = error_of(tiny.trainer(tmp_path), direction=direction, run_dir=tmp_path / "run")
    assert error.startswith("direction must be 'minimize' or 'maximize', or a list of these")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"workers": None}, {"n_jobs": "x"}, {"callbacks": 3}])
def test_options_of_wrong_types(options: dict[str, Any], tmp_path: Path) -> None:
    assert next(iter(options)) in error_of(tiny.trainer(tmp_path), **options)


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trainer, said = tiny.trainer(tmp_path), r"cannot be created .* another run_dir"
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(supermax.EnvironmentFault, match=said):
            search(trainer, run_dir=place)
    trainer.args.output_dir = str(tmp_path / "file")
    with pytest.raises(supermax.EnvironmentFault, match=said):
        search(trainer)
