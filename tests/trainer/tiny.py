"""A Trainer with a few thousand parameters, its data, and losses of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

LENGTH = 12


def config(**fields: Any) -> BertConfig:
    return BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        **fields,
    )


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return sequences whose class is that of their first token."""
    random = np.random.default_rng(seed)
    ids = random.integers(5, 64, (count, LENGTH))
    return [
        {"input_ids": row.tolist(), "attention_mask": [1] * LENGTH, "labels": int(row[0] > 34)}
        for row in ids
    ]


def classifier() -> BertForSequenceClassification:
    return BertForSequenceClassification(config(num_labels=2))


def tagger() -> BertForTokenClassification:
    return BertForTokenClassification(config(num_labels=3))


def arguments(folder: Path, **fields: Any) -> TrainingArguments:
    usual = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "learning_rate": 1e-2,
    }
    return TrainingArguments(output_dir=str(folder / "output"), **{**usual, **fields})


def accuracy(predictions: Any) -> dict[str, float]:
    found = predictions.predictions.argmax(-1) == predictions.label_ids
    return {"accuracy": float(found.mean())}


def trainer(folder: Path, *, of: type[Trainer] = Trainer, **parts: Any) -> Trainer:
    fields = parts.pop("arguments", {})
    usual = {
        "model_init": classifier,
        "train_dataset": rows(32),
        "eval_dataset": rows(16, 1),
        "compute_metrics": accuracy,
    }
    return of(args=arguments(folder, **fields), **{**usual, **parts})


class Weighted(Trainer):
    """Trainer with class weights, as the documentation of transformers shows."""

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 5.0]))
        return (loss, outputs) if return_outputs else loss


class Scaled(Trainer):
    """Trainer that changes the loss of the model."""

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        outputs = model(**inputs)
        loss = 2 * outputs.loss + outputs.logits.pow(2).mean()
        return (loss, outputs) if return_outputs else loss


class Contrastive(BertForSequenceClassification):
    """Model whose own loss compares the examples of a batch."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None
    ) -> Any:
        outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        logits = outputs.logits @ outputs.logits.T
        outputs.loss = nn.functional.cross_entropy(logits, torch.arange(len(logits)))
        return outputs


class WeightedModel(BertForSequenceClassification):
    """Model whose own loss has class weights."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        labels: Any = None,
        num_items_in_batch: Any = None,
    ) -> Any:
        outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        if labels is not None:
            weight = torch.tensor([1.0, 8.0])
            outputs.loss = nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
        return outputs


def weighted_model() -> WeightedModel:
    return WeightedModel(config(num_labels=2))


def contrastive() -> Contrastive:
    return Contrastive(config(num_labels=2))


class Marks(TrainerCallback):  # type: ignore[misc]
    """Write a line for each epoch that begins: trial and epoch."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        with self.file.open("a") as file:
            file.write(f"{round(state.epoch or 0)}\n")


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("batch", [4, 8]),
    }


def loss(metrics: dict[str, float]) -> float:
    return metrics["eval_loss"]


class Fails(TrainerCallback):  # type: ignore[misc]
    """Call `action` when an epoch begins, in the first attempt at a trial."""

    def __init__(self, folder: Path, action: Any, *, epoch: int = 0, always: bool = False) -> None:
        self.file, self.action = folder / "failed", action
        self.epoch, self.always = epoch, always

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if round(state.epoch or 0) != self.epoch or (self.file.exists() and not self.always):
            return
        self.file.touch()
        self.action()


class Small:
    """Model that has memory for the activations of a few examples only."""

    def __init__(self, examples: int, *, evaluated: int = 1 << 30, make: Any = classifier) -> None:
        self.examples, self.evaluated, self.make = examples, evaluated, make

    def __call__(self) -> Any:
        model = self.make()

        def limit(encoder: Any, args: Any) -> None:
            most = self.examples if encoder.training else self.evaluated
            if len(args[0]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        model.bert.encoder.register_forward_pre_hook(limit)
        return model
