"""Supermax side of parity.py: the same rows and settings, trained by its own loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from parity_data import CLIP, DECAY, DROPOUT, LABEL_THRESHOLD, WARMUP, Row, Split, Task
from parity_metrics import (
    Answer,
    answer_metrics,
    entity_metrics,
    label_metrics,
    macro_f1,
    number_metrics,
    tags_of_entities,
)

from supermax.training import loop
from supermax.training.config import Config, read_config
from supermax.training.data.entities import Entity, chunks, parsed_tag
from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.evaluate import Evaluation
from supermax.training.loop import train as train_trial
from supermax.training.models import assembly
from supermax.training.models.sources import find
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import Indices
from supermax.training.steps.execution import Execution

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6
"""Difference of a metric that rounding explains."""


def config_of(task: Task, encoder: str, seed: int) -> Config:
    """Return the configuration that is the same model and training as the plain side's."""
    dropout = 0.0 if task.agent == "evidence" else DROPOUT  # transformers' head has none there
    head: dict[str, object] = {"dropout": dropout}
    if task.agent in ("multilabel", "regression"):  # BERT's pooler: a layer with tanh
        width = find(encoder).config.hidden_size
        head |= {"pooling": "cls", "depth": 2, "width": width, "activation": "tanh"}
    return read_config(
        {
            "agent": task.agent,
            "encoder": {"name": encoder},
            "text": {"max_length": task.length, "doc_stride": task.stride},
            "train": {"effective_batch": task.batch, "epochs": task.epochs, "clip": CLIP,
                      "seed": seed},
            "optim": {"lr": task.rate, "weight_decay": DECAY},
            "schedule": {"name": "linear", "warmup": WARMUP},
            "head": head,
            "no_answer": {"policy": "none"},
            "decode": {"n_best": 20, "max_answer": task.max_answer},
            "labels": {"threshold": LABEL_THRESHOLD},
        }
    )  # fmt: skip


def corpus_of(task: Task, rows: list[Row], names: list[str]) -> Corpus:
    examples = {
        "classes": ("criteria", "share", "joint"),
        "spans": ("evidence", "share", "joint"),
        "label_sets": ("multilabel",),
        "numbers": ("regression",),
        "entities": ("token-classification",),
    }
    kinds = [kind for kind, agents in examples.items() if task.agent in agents]
    made: dict[str, Any] = {
        kind: tuple(example_of(kind, f"{kind} {i}", row, names) for i, row in enumerate(rows))
        for kind in kinds
    }
    return Corpus("parity", tuple(names), **made)


def example_of(kind: str, name: str, row: Row, names: list[str]) -> Example:
    plain = Example(name, row.group, row.text, row.question)
    if kind == "classes":
        return replace(plain, label=row.label)
    if kind == "spans":
        answer = (row.start, row.start + len(row.answer))
        return replace(plain, spans=(answer,) if row.answer else ())
    if kind == "label_sets":
        return replace(plain, labels=row.labels)
    if kind == "numbers":
        return replace(plain, value=row.value)
    words = row.word_spans
    entities = (
        Entity(words[first][0], words[end - 1][1], names.index(kind))
        for first, end, kind in chunks(tag for tag in map(parsed_tag, row.tags) if tag is not None)
    )
    return replace(plain, entities=tuple(entities), words=tuple(words))


def metrics_of(evaluation: Evaluation, held: list[Row], names: list[str]) -> dict[str, float]:
    """Return the metrics of the plain side, from the predictions of the model.

    Raises AssertionError if those that Supermax computes itself are others.
    """
    rows, found = range(len(held)), dict[str, float]()
    if evaluation.label_sets:
        likely = [evaluation.probabilities[f"label_sets {i}"] for i in rows]
        found = label_metrics(held, likely)
    elif evaluation.probabilities:
        likely = [evaluation.probabilities[f"classes {i}"] for i in rows]
        predicted = [int(np.argmax(each)) for each in likely]
        found = {"macro_f1": macro_f1([row.label for row in held], predicted)}
    if evaluation.numbers:
        found = number_metrics(held, [evaluation.numbers[f"numbers {i}"] for i in rows])
    if evaluation.entities:
        typed = [
            [(e.start, e.end, names[e.type]) for e in (scored.entity for scored in some)]
            for some in (evaluation.entities[f"entities {i}"] for i in rows)
        ]
        tags = [tags_of_entities(row, some) for row, some in zip(held, typed, strict=True)]
        found = entity_metrics(held, tags)
    for name, value in found.items():
        own = evaluation.metrics[name]
        assert abs(value - own) < TOLERANCE, f"{name}: {value}, and {own} by Supermax"
    if evaluation.spans:
        answers = []
        for i in rows:
            ((begin, end),) = evaluation.spans[f"spans {i}"]
            answers.append(Answer(begin, end, evaluation.margins[f"spans {i}"]))
        found |= answer_metrics(held, answers)
    return found


class EpochMetrics:
    """Reporter that evaluates after each epoch, as the plain side does."""

    stop_requested = False

    def __init__(self, prepared: Prepared, held: list[Row], names: list[str]) -> None:
        self._prepared, self._held, self._names = prepared, held, names
        self.epochs: list[dict[str, float]] = []

    def report(self, value: float, epoch: int) -> None:
        found = metrics_of(self._prepared.evaluate(), self._held, self._names)
        self.epochs.append(found)

    def note(self, *, epoch: float, samples_per_second: float | None) -> None: ...

    def should_prune(self) -> bool:
        return False

    def prune(self) -> NoReturn:
        raise AssertionError

    def stop(self) -> NoReturn:
        raise AssertionError


def change(side: str) -> None:
    """Patch Supermax in this process as the side's name says."""
    if side == "ours padded":
        assembly.can_pack = lambda _: False  # type: ignore[assignment,attr-defined]
    elif side == "ours sorted":
        loop.order = sorted_pools  # type: ignore[attr-defined]


def sorted_pools(lengths: Indices, size: int, seed: int, epoch: int) -> list[Indices]:
    """Return batches of similar length, from pools of fifty batches."""
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    shuffled, pool = rng.permutation(len(lengths)), 50 * size
    parts = [shuffled[i : i + pool] for i in range(0, len(shuffled), pool)]
    grouped = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])
    batches = [grouped[i : i + size] for i in range(0, len(grouped), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def prepared_for(
    task: Task, encoder: str, data: Split, seed: int, cache: Path, **execution: bool
) -> Prepared:
    train_rows, held, names = data
    precision = "bf16" if DEVICE == "cuda" else "fp32"
    return prepare(
        config_of(task, encoder, seed),
        corpus_of(task, train_rows, names),
        corpus_of(task, held, names),
        cache=cache,
        execution=Execution(device=DEVICE, precision=precision, **execution),
    )


def train(prepared: Prepared, held: list[Row], names: list[str]) -> list[dict[str, float]]:
    """Return the held-out metrics after each epoch."""
    reporter = EpochMetrics(prepared, held, names)
    train_trial(prepared, reporter)
    return reporter.epochs
