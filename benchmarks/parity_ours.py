"""Supermax side of parity.py: the same rows and settings, trained by its own loop."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from parity_data import CLIP, DECAY, DROPOUT, WARMUP, Answer, Row, Task, answer_metrics, macro_f1

from supermax.training import loop
from supermax.training.config import Config, read_config
from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.evaluate import Evaluation
from supermax.training.loop import train as train_trial
from supermax.training.models import assembly
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import Indices
from supermax.training.steps.execution import Execution

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def config_of(task: Task, encoder: str, seed: int) -> Config:
    dropout = 0.0 if task.agent == "evidence" else DROPOUT  # transformers' head has none there
    return read_config(
        {
            "agent": task.agent,
            "encoder": {"name": encoder},
            "text": {"max_length": task.length, "doc_stride": task.stride},
            "train": {"effective_batch": task.batch, "epochs": task.epochs, "clip": CLIP,
                      "seed": seed},
            "optim": {"lr": task.rate, "weight_decay": DECAY},
            "schedule": {"name": "linear", "warmup": WARMUP},
            "head": {"dropout": dropout},
            "no_answer": {"policy": "none"},
            "decode": {"n_best": 20, "max_answer": task.max_answer},
        }
    )  # fmt: skip


def corpus_of(task: Task, rows: list[Row], labels: list[str]) -> Corpus:
    classes = tuple(
        Example(f"class {i}", row.group, row.text, row.question, row.label)
        for i, row in enumerate(rows)
    )
    spans = tuple(
        Example(f"span {i}", row.group, row.text, row.question, None,
                ((row.start, row.start + len(row.answer)),) if row.answer else ())
        for i, row in enumerate(rows)
    )  # fmt: skip
    return Corpus(
        "parity",
        tuple(labels),
        classes if task.agent != "evidence" else (),
        spans if task.agent != "criteria" else (),
    )


def metrics_of(evaluation: Evaluation, held: list[Row]) -> dict[str, float]:
    """Return the metrics of the plain side, from the predictions of the model."""
    found: dict[str, float] = {}
    if evaluation.probabilities:
        predicted = [
            max(enumerate(evaluation.probabilities[f"class {i}"]), key=lambda item: item[1])[0]
            for i in range(len(held))
        ]
        found["macro_f1"] = macro_f1([row.label for row in held], predicted)
    if evaluation.spans:
        answers = []
        for i in range(len(held)):
            ((begin, end),) = evaluation.spans[f"span {i}"]
            answers.append(Answer(begin, end, evaluation.margins[f"span {i}"]))
        found |= answer_metrics(held, answers)
    return found


class EpochMetrics:
    """Reporter that evaluates after each epoch, as the plain side does."""

    stop_requested = False

    def __init__(self, prepared: Prepared, held: list[Row]) -> None:
        self._prepared, self._held = prepared, held
        self.epochs: list[dict[str, float]] = []

    def report(self, value: float, epoch: int) -> None:
        self.epochs.append(metrics_of(self._prepared.evaluate(), self._held))

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


def train(
    task: Task,
    encoder: str,
    train_rows: list[Row],
    held: list[Row],
    labels: list[str],
    seed: int,
    cache: Path,
    **execution: bool,
) -> list[dict[str, float]]:
    precision = "bf16" if DEVICE == "cuda" else "fp32"
    prepared = prepare(
        config_of(task, encoder, seed),
        corpus_of(task, train_rows, labels),
        corpus_of(task, held, labels),
        cache=cache,
        execution=Execution(device=DEVICE, precision=precision, **execution),
    )
    reporter = EpochMetrics(prepared, held)
    train_trial(prepared, reporter)
    return reporter.epochs
