"""SentenceTransformerTrainer, whose losses compare the examples of a batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from transformers import BertModel, BertTokenizerFast

from tests.trainer import tiny
from tests.trainer.test_faults import CountingFails, crash, faults_in, killed
from tests.trainer.test_search import search, seeded

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick", "preloaded")]
datasets = pytest.importorskip("datasets")
st = pytest.importorskip("sentence_transformers")


def base_model(folder: Path) -> str:
    """Write an encoder with a tokenizer of 59 words."""
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(59))]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(tiny.config(**dropouts)).save_pretrained(folder)
    return str(folder)


def model_of(path: str, memory: int) -> Any:
    model = st.SentenceTransformer(path)

    def limit(encoder: Any, args: Any) -> None:
        if encoder.training and len(args[0]) > memory:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for module in model.modules():
        if type(module).__name__ == "BertEncoder":
            module.register_forward_pre_hook(limit)
    return model


def pairs(start: int, count: int) -> Any:
    texts = [
        " ".join(f"w{(7 * i + j) % 59}" for j in range(5)) for i in range(start, start + count)
    ]
    return datasets.Dataset.from_dict({"anchor": texts, "positive": [f"{t} w1" for t in texts]})


def trainer(folder: Path, path: str, memory: int = 8, callbacks: Any = None) -> Any:
    return st.SentenceTransformerTrainer(
        model_init=partial(model_of, path, memory),
        args=st.SentenceTransformerTrainingArguments(
            output_dir=str(folder / "output"),
            num_train_epochs=2,
            per_device_train_batch_size=8,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=pairs(0, 32),
        eval_dataset=pairs(40, 16),
        loss=st.sentence_transformer.losses.MultipleNegativesRankingLoss,
        callbacks=callbacks,
    )


def space(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)}


@pytest.mark.filterwarnings("default")
def test_values_are_those_of_transformers_also_in_micro_batches(tmp_path: Path) -> None:
    path = base_model(tmp_path / "base")
    theirs = trainer(tmp_path, path).hyperparameter_search(
        hp_space=space, compute_objective=tiny.loss, n_trials=2, sampler=seeded(), backend="optuna"
    )
    for memory, faults in ((8, {}), (2, {"device out of memory": 4})):
        ours = search(trainer(tmp_path, path, memory), hp_space=space, sampler=seeded())
        assert ours.hyperparameters == theirs.hyperparameters
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-4)
        assert ours.run_summary["summary"].faults == faults
    vectors = st.SentenceTransformer(ours.run_summary["checkpoint"]).encode(["w1 w2"])
    assert vectors.shape == (1, 16)
    assert isinstance(ours.run_summary["study"], optuna.Study)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("action", "fault"), [(crash, "signal"), (killed, "killed from outside")])
def test_a_crash_repeats_no_epoch(action: Any, fault: str, tmp_path: Path) -> None:
    path = base_model(tmp_path / "base")
    once: dict[str, Any] = {"hp_space": space, "sampler": seeded(), "n_trials": 1}
    plain = search(trainer(tmp_path, path), run_dir=tmp_path / "plain", **once)
    failing = trainer(tmp_path, path, callbacks=[CountingFails(tmp_path, action, epoch=1)])
    found = search(failing, run_dir=tmp_path / "run", **{**once, "sampler": seeded()})
    assert faults_in(tmp_path / "run") == [fault]
    assert (tmp_path / "marks").read_text().split() == ["0", "1", "1"]
    assert found.objective == plain.objective
