"""hyperparameter_search: what it returns, and that transformers returns the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState
from transformers import BertForSequenceClassification

import supermax
from supermax.trainer.detaching import Pristine, detached
from tests.trainer import tiny

pytestmark = pytest.mark.usefixtures("quick", "preloaded")


def search(trainer: Any, **options: Any) -> Any:
    usual: dict[str, Any] = {
        "hp_space": tiny.space,
        "compute_objective": tiny.loss,
        "n_trials": 2,
        "progress": False,
    }
    return supermax.hyperparameter_search(trainer, **{**usual, **options})


def seeded(startup: int = 2) -> optuna.samplers.TPESampler:
    return optuna.samplers.TPESampler(seed=3, n_startup_trials=startup)


def test_result_is_that_of_transformers(tmp_path: Path) -> None:
    """With the same sampler: hyperparameters, values, reports, and which trials are pruned."""
    common: dict[str, Any] = {
        "hp_space": tiny.space,
        "compute_objective": tiny.loss,
        "n_trials": 6,
        "direction": "minimize",
        "pruner": optuna.pruners.MedianPruner(n_startup_trials=2),
    }
    trainer = tiny.trainer(tmp_path, arguments={"num_train_epochs": 2})
    studies = [f"sqlite:///{tmp_path}/{name}.db" for name in ("theirs", "ours")]
    theirs = trainer.hyperparameter_search(
        backend="optuna", storage=studies[0], study_name="s", sampler=seeded(3), **common
    )
    ours = supermax.hyperparameter_search(
        tiny.trainer(tmp_path, arguments={"num_train_epochs": 2}),
        storage=studies[1],
        study_name="s",
        sampler=seeded(3),
        progress=False,
        **common,
    )
    assert ours[:3] == theirs[:3]
    found = [optuna.load_study(study_name="s", storage=url).trials for url in studies]
    kept = [
        [(t.state, t.params, t.value, t.intermediate_values) for t in trials] for trials in found
    ]
    assert kept[0] == kept[1]
    assert {state for state, *_ in kept[0]} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_the_best_model_is_kept_and_no_other(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path)
    notify = f"cat > {tmp_path}/told"
    best = search(trainer, n_trials=3, run_dir=tmp_path / "run", track=None, notify=notify)
    assert json.loads((tmp_path / "told").read_text())["trials"] == {"COMPLETE": 3}
    folder = Path(best.run_summary["checkpoint"])
    model = BertForSequenceClassification.from_pretrained(folder)
    trainer.model = model
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best.objective, rel=1e-6)
    run_dir = best.run_summary["summary"].run_dir
    assert [path.parent for path in run_dir.rglob("model.safetensors")] == [folder]
    assert not list(run_dir.rglob("checkpoint-*"))


@pytest.mark.slow
def test_the_trainer_is_as_before(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path)
    before, model = dict(vars(trainer)), trainer.model
    arguments = dict(vars(trainer.args))
    search(trainer, n_trials=1)
    assert dict(vars(trainer)) == before
    assert trainer.model is model
    assert dict(vars(trainer.args)) == arguments
    assert trainer.train().global_step == 4


@pytest.mark.slow
def test_n_trials_is_the_total(tmp_path: Path) -> None:
    for _ in range(2):
        best = search(tiny.trainer(tmp_path), n_trials=2, run_dir=tmp_path)
    assert len(best.run_summary["study"].trials) == 2
    best = search(tiny.trainer(tmp_path), n_trials=3, run_dir=tmp_path)
    assert len(best.run_summary["study"].trials) == 3


@pytest.mark.slow
def test_objective_and_space_of_transformers_are_the_defaults(tmp_path: Path) -> None:
    sampler = optuna.samplers.RandomSampler(seed=0)
    best = supermax.hyperparameter_search(
        tiny.trainer(tmp_path), n_trials=1, direction="maximize", sampler=sampler, progress=False
    )
    assert set(best.hyperparameters) == {
        "learning_rate",
        "num_train_epochs",
        "seed",
        "per_device_train_batch_size",
    }
    assert 0 <= best.objective <= 1  # the accuracy, not the loss


@pytest.mark.slow
def test_values_are_cast_as_by_transformers(tmp_path: Path) -> None:
    """A string for an int field."""

    def space(trial: Any) -> dict[str, Any]:
        return {"per_device_train_batch_size": trial.suggest_categorical("batch", ["16"])}

    best = search(tiny.trainer(tmp_path), hp_space=space, n_trials=1)
    study = best.run_summary["study"]
    assert list(study.trials[0].intermediate_values) == [2]  # 32 rows in batches of 16


@pytest.mark.slow
def test_several_objectives_return_the_front(tmp_path: Path) -> None:
    def both(metrics: dict[str, float]) -> tuple[float, float]:
        return metrics["eval_loss"], metrics["eval_accuracy"]

    best = search(
        tiny.trainer(tmp_path), compute_objective=both, direction=["minimize", "maximize"]
    )
    study = best[0].run_summary["study"]
    assert {run.run_id for run in best} == {str(t.number) for t in study.best_trials}
    assert all(Path(run.run_summary["checkpoint"]).is_dir() for run in best)


@pytest.mark.slow
def test_search_space_as_data(tmp_path: Path) -> None:
    """Its parameters that are no arguments are for model_init."""
    space = supermax.space.loads("""
name: tiny
parameters:
  learning_rate: {type: float, low: 1e-4, high: 1e-1, log: true}
  model.layers: {choices: [2]}
""")
    layers = tmp_path / "layers"

    def model_init(trial: Any) -> Any:
        count = trial.params["model.layers"] if trial is not None else 1
        layers.write_text(str(count))
        return BertForSequenceClassification(tiny.config(num_labels=2))

    best = search(tiny.trainer(tmp_path, model_init=model_init), hp_space=space, n_trials=1)
    assert set(best.hyperparameters) == {"learning_rate", "model.layers"}
    assert layers.read_text() == "2"
    assert best.run_summary["study"].study_name == "tiny"


@pytest.mark.slow
def test_reused_processes_give_the_same_values(tmp_path: Path) -> None:
    """A trial starts from the Trainer as it was given, not as the trial before has left it."""

    def space(trial: Any) -> dict[str, Any]:
        if trial.number == 0:
            return {"num_train_epochs": 2, "weight_decay": 0.5}
        return {}

    fresh, reused = (
        search(
            tiny.trainer(tmp_path, callbacks=[tiny.Marks(tmp_path / f"{reuse}")]),
            hp_space=space,
            reuse_cells=reuse,
            run_dir=tmp_path / f"run-{reuse}",
        ).run_summary
        for reuse in (False, True)
    )
    assert [t.value for t in fresh["study"].trials] == [t.value for t in reused["study"].trials]
    assert (fresh["summary"].cells, reused["summary"].cells) == (2, 1)
    assert (tmp_path / "True").read_text().split() == ["0", "1", "0"]


def test_pruned_trial(tmp_path: Path) -> None:
    pruner = optuna.pruners.ThresholdPruner(upper=0.0)
    marks = tmp_path / "marks"
    trainer = tiny.trainer(
        tmp_path, callbacks=[tiny.Marks(marks)], arguments={"num_train_epochs": 5}
    )
    with pytest.raises(supermax.RunHalted, match="No trial has succeeded"):
        search(trainer, n_trials=1, pruner=pruner, run_dir=tmp_path)
    study = optuna.load_study(
        study_name="hyperparameter_search", storage=f"sqlite:///{tmp_path}/study.db"
    )
    assert study.trials[0].state is TrialState.PRUNED
    assert len(study.trials[0].intermediate_values) == 1
    assert marks.read_text().split() == ["0"]


@pytest.mark.slow
def test_paused_trials_continue_from_their_checkpoints(tmp_path: Path) -> None:
    """No epoch of a trial is trained twice, although it pauses at rungs."""
    marks = tmp_path / "marks"

    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)}

    best = search(
        tiny.trainer(tmp_path, callbacks=[tiny.Marks(marks)], arguments={"num_train_epochs": 3}),
        hp_space=space,
        n_trials=6,
        pruner=supermax.Promotion(max_reports=3, min_agreement=-1.0, run_through=0.0),
    )
    trials = best.run_summary["study"].trials
    assert TrialState.PRUNED in {trial.state for trial in trials}  # paused, and never continued
    epochs = sum(len(trial.intermediate_values) for trial in trials)
    assert len(marks.read_text().split()) == epochs < 18


def test_a_function_makes_the_trainer_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the run folder is made: the Trainer is not known here

    def make() -> Any:
        trainer = tiny.trainer(tmp_path)
        trainer.lock = __import__("threading").Lock()
        return trainer

    with pytest.raises(supermax.UserError, match=r"(?s)'lock'.*pass a function that makes"):
        search(make())
    assert search(make, n_trials=1, direction="minimize").run_id == "0"


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
import supermax

WIDTH = 16

class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.randint(5, 60, (count, 8), generator=torch.Generator().manual_seed(count))
    def __len__(self):
        return len(self.ids)
    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": int(self.ids[i][0] > 30)}

class MyTrainer(Trainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)

def make_model_init(layers):
    def model_init():
        return BertForSequenceClassification(BertConfig(
            vocab_size=64, hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=8))
    return model_init

trainer = MyTrainer(
    args=TrainingArguments(output_dir=sys.argv[1], eval_strategy="epoch", num_train_epochs=1,
                           report_to=[], use_cpu=True),
    model_init=make_model_init(1),
    data_collator=lambda rows: {
        "input_ids": torch.stack([r["input_ids"] for r in rows]),
        "labels": torch.tensor([r["labels"] for r in rows])},
    train_dataset=Rows(16), eval_dataset=Rows(8),
    compute_metrics=lambda p: {"mean": float((p.predictions.argmax(-1) == p.label_ids).mean())},
)
best = supermax.hyperparameter_search(
    trainer,
    hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2)},
    n_trials=2, direction="maximize", progress=False)
print(best.run_id, best.run_summary["summary"].faults)
"""


@pytest.mark.slow
def test_a_script_with_everything_in_it(tmp_path: Path) -> None:
    """Classes, lambdas and closures of a main program reach the processes, and it needs no
    `if __name__ == "__main__"`."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "output"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(None, 1)[1].strip() == "{}"


def test_importing_supermax_does_not_import_transformers() -> None:
    code = "import supermax.trainer.search, sys; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_weights_are_left_on_the_gpu(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path)
    with detached(trainer):
        assert trainer.model is trainer.accelerator is None
        assert not [v for v in vars(trainer).values() if isinstance(v, torch.nn.Module)]
    assert trainer.evaluate()["eval_loss"] > 0


def test_data_without_a_truth_value_are_shared(tmp_path: Path) -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(tiny.rows(8))

        def __len__(self) -> int:
            raise TypeError("endless")

    trainer = tiny.trainer(tmp_path, train_dataset=Endless(), arguments={"max_steps": 1})
    with detached(trainer):
        assert Pristine(trainer).copy().train_dataset is trainer.train_dataset
