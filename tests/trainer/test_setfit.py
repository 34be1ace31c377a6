"""The Trainer of SetFit, whose first phase is a Trainer of sentence-transformers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState

import supermax
from supermax.errors import UserError
from tests.trainer.test_faults import CountingFails, crash, faults_in, killed, trials_in
from tests.trainer.test_search import seeded
from tests.trainer.test_sentence_transformers import base_model

setfit = pytest.importorskip("setfit")
datasets = pytest.importorskip("datasets")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick", "preloaded"),
    pytest.mark.filterwarnings("default"),
]


def texts(start: int, count: int) -> Any:
    """Return texts whose label follows from their second word."""
    found = [
        f"w{(7 * i) % 59} {'w1' if i % 2 else 'w2'} w{(5 * i) % 59}"
        for i in range(start, start + count)
    ]
    return datasets.Dataset.from_dict({"text": found, "label": [i % 2 for i in range(count)]})


def log_loss(predicted: Any, truth: Any) -> dict[str, float]:
    return {"agreement": float(np.mean(np.asarray(predicted) == np.asarray(truth)))}


def model_of(path: str, memory: int, params: Any = None) -> Any:
    """Return a model that has memory for the activations of a few texts only."""
    model = setfit.SetFitModel.from_pretrained(path, device="cpu")

    def limit(encoder: Any, args: Any) -> None:
        if encoder.training and len(args[0]) > memory:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for module in model.model_body.modules():
        if type(module).__name__ == "BertEncoder":
            module.register_forward_pre_hook(limit)
    return model


class Weighted(setfit.Trainer):  # type: ignore[misc]
    """Trainer of the user: the objective is the weight of a feature, which has many values."""

    def evaluate(self, dataset: Any = None, metric_key_prefix: str = "test") -> dict[str, float]:
        found: dict[str, float] = super().evaluate(dataset, metric_key_prefix)
        return {**found, "weight": float(np.abs(self.model.model_head.coef_).sum())}


def trainer(
    folder: Path, path: str, memory: int = 64, callbacks: Any = None, rate: float = 1e-3
) -> Any:
    return Weighted(
        model_init=partial(model_of, path, memory),
        args=setfit.TrainingArguments(
            output_dir=str(folder / "output"),
            batch_size=8,
            num_epochs=2,
            num_iterations=2,
            body_learning_rate=rate,
            report_to="none",
            show_progress_bar=False,
        ),
        train_dataset=texts(0, 12),
        eval_dataset=texts(20, 8),
        metric=log_loss,
        callbacks=callbacks,
    )


def space(trial: Any) -> dict[str, Any]:
    return {"body_learning_rate": trial.suggest_float("body_learning_rate", 1e-4, 1e-2, log=True)}


def weight(metrics: dict[str, float]) -> float:
    return metrics["weight"]


COMMON: dict[str, Any] = {"hp_space": space, "compute_objective": weight}


def search(of: Any, folder: Path, **options: Any) -> Any:
    return supermax.hyperparameter_search(
        of, sampler=seeded(), run_dir=folder / "run", progress=False, **{**COMMON, **options}
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return base_model(tmp_path_factory.mktemp("encoder") / "base")


def plain_value(folder: Path, path: str, rate: float) -> float:
    """Train without a search: SetFit's own one does not train the encoder of a trial."""
    mine = trainer(folder, path, rate=rate)
    before = {n: v.clone() for n, v in mine.model.model_body.state_dict().items()}
    mine.train()
    after = mine.model.model_body.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in after.items())
    return weight(mine.evaluate())


def test_values_are_those_of_setfit_also_in_micro_batches(tmp_path: Path, path: str) -> None:
    for memory, faults in ((64, {}), (4, {"device out of memory": 3})):
        folder = tmp_path / str(memory)
        best = search(trainer(folder, path, memory), folder, n_trials=3)
        assert best.run_summary["summary"].faults == faults
        found = {t.params["body_learning_rate"]: t.value for t in trials_in(folder / "run")}
        plain = {rate: plain_value(tmp_path, path, rate) for rate in found}
        assert found == pytest.approx(plain, rel=1e-4)
        assert len(set(plain.values())) == 3
        assert best.objective == max(found.values())
    model = setfit.SetFitModel.from_pretrained(best.run_summary["checkpoint"], device="cpu")
    assert float(np.abs(model.model_head.coef_).sum()) == pytest.approx(best.objective)


@pytest.mark.parametrize(("action", "fault"), [(crash, "signal"), (killed, "killed from outside")])
def test_a_crash_repeats_no_epoch(action: Any, fault: str, tmp_path: Path, path: str) -> None:
    plain = search(trainer(tmp_path, path), tmp_path / "plain", n_trials=1)
    failing = trainer(tmp_path, path, callbacks=[CountingFails(tmp_path, action, epoch=1)])
    best = search(failing, tmp_path, n_trials=1)
    assert faults_in(tmp_path / "run") == [fault]
    assert (tmp_path / "marks").read_text().split() == ["0", "1", "1"]
    assert best.objective == plain.objective


def test_a_single_text_that_does_not_fit_is_infeasible(tmp_path: Path, path: str) -> None:
    with pytest.raises(supermax.errors.RunHalted):
        search(trainer(tmp_path, path, memory=0), tmp_path, n_trials=1)
    (trial,) = trials_in(tmp_path / "run")
    assert trial.state is TrialState.PRUNED
    assert any(name.startswith("constraints:supermax:") for name in trial.system_attrs)


def test_a_function_makes_the_trainer(tmp_path: Path, path: str) -> None:
    best = search(partial(trainer, tmp_path, path), tmp_path, n_trials=1, direction="maximize")
    assert best.objective == search(trainer(tmp_path, path), tmp_path / "2", n_trials=1).objective


def test_the_trainer_is_as_before(tmp_path: Path, path: str) -> None:
    mine = trainer(tmp_path, path)
    search(mine, tmp_path, n_trials=1)
    mine.train()
    assert weight(mine.evaluate()) == plain_value(tmp_path, path, 1e-3)


def test_wrong_use_is_refused(tmp_path: Path, path: str) -> None:
    for change, options, expected in (
        ({"model_init": None}, {}, "has no model_init"),
        ({"model_init": lambda: None}, {}, "Write model_init(params)"),
        ({"eval_dataset": None}, {}, "has no eval_dataset"),
        ({}, {"pruner": optuna.pruners.MedianPruner()}, "Leave pruner out"),
    ):
        mine = trainer(tmp_path, path)
        vars(mine).update(change)
        with pytest.raises(UserError, match=expected.replace("(", r"\(").replace(")", r"\)")):
            search(mine, tmp_path, n_trials=1, **options)
