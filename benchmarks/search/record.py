"""Record learning curves of fine-tuning, on which searches are replayed (tweeteval.py).

    python benchmarks/search/record.py DATA ENCODER --into curves.jsonl --seconds 500

DATA is a folder with TweetEval tasks as tweeteval-*.csv.gz (columns text, label, split), ENCODER
that of a pretrained BERT. Each line of the output is one training: its validation and test macro
F1 after every epoch (trainings.py). A further call goes on with what is missing in the output, so
that the table can be made in pieces.

Kinds of trainings:
    long      a quasi-random configuration, with a schedule of nine epochs
    short     the same configuration, with schedules of one and of three epochs
    seed      the best 20 configurations of each task with further seeds
Each task is trained with the whole encoder and with the first half of its layers.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import numpy as np
import optuna
from sklearn.metrics import f1_score
from trainings import (
    CONFIGURATIONS,
    ENCODERS,
    EPOCHS,
    SEEDS,
    SHORT,
    WITH_SEEDS,
    WITH_SHORT,
    Encoder,
    Item,
    Kind,
    Line,
    configurations,
    read_lines,
)

import supermax
from supermax.engine.processes import mps
from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.memory.budgets import GpuBudget
from supermax.memory.sharing import share_of_each
from supermax.space import nest
from supermax.tasks.objective import TrialReporter, local_execution
from supermax.training.config import read_config
from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.evaluate import Evaluation
from supermax.training.loop import train
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.execution import Execution

MOST_ROWS = 3000
"""Training rows of a task, at most: a random subset of a larger one."""


def items(kind: Kind, tasks: Sequence[str], done: dict[Item, Line]) -> Iterator[Item]:
    """Return the trainings of a kind, so that all tasks progress alike."""
    if kind == "seed":
        for task in tasks:
            for encoder in ENCODERS:
                yield from _replicates(task, encoder, done)
        return
    schedules = SHORT if kind == "short" else (EPOCHS,)
    for configuration in range(WITH_SHORT if kind == "short" else CONFIGURATIONS):
        for task in tasks:
            for encoder in ENCODERS:
                for epochs in schedules:
                    yield Item(task, encoder, configuration, epochs)


def _replicates(task: str, encoder: Encoder, done: dict[Item, Line]) -> Iterator[Item]:
    curves = {
        item.configuration: float(np.nan_to_num(line.validation).max())
        for item, line in done.items()
        if item[:2] == (task, encoder) and item.epochs == EPOCHS and item.seed == 1
    }
    best = sorted(curves, key=lambda c: (-curves[c], c))[:WITH_SEEDS]
    for configuration in best:
        for seed in SEEDS:
            yield Item(task, encoder, configuration, EPOCHS, seed)


@dataclass(frozen=True)
class TaskData:
    """Splits of a task. Both held-out splits are evaluated in one pass, hence in one corpus."""

    train: Corpus
    held_out: Corpus


def read_task(file: Path) -> TaskData:
    text = gzip.decompress(file.read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    labels = tuple(sorted({row["label"] for row in rows}))
    parts: dict[str, list[Example]] = {"train": [], "validation": [], "test": []}
    for i, row in enumerate(rows):
        name = f"{row['split']} {i}"
        parts[row["split"]].append(
            Example(name, name, row["text"], label=labels.index(row["label"]))
        )
    kept = np.random.default_rng(0).permutation(len(parts["train"]))[:MOST_ROWS]
    train = tuple(parts["train"][i] for i in sorted(kept))
    name = file.name.split(".")[0]
    return TaskData(
        Corpus(name, labels, train),
        Corpus(name, labels, tuple(parts["validation"] + parts["test"])),
    )


@dataclass
class Curve:
    """Scores of a training after each epoch."""

    labels: dict[str, int]
    validation: list[float]
    test: list[float]

    def add(self, evaluation: Evaluation) -> None:
        for part, scores in (("validation", self.validation), ("test", self.test)):
            ids = [name for name in self.labels if name.startswith(part)]
            probabilities = np.array([evaluation.probabilities[name] for name in ids])
            truth, predicted = [self.labels[name] for name in ids], probabilities.argmax(1)
            score = float(f1_score(truth, predicted, average="macro"))
            scores.append(round(score, 5) if np.isfinite(probabilities).all() else math.nan)


class RecordedReporter(TrialReporter):
    """Reporter that tells the study nothing."""

    def report(self, value: float, epoch: int) -> None:
        if self.stop_requested:
            self.stop()

    def should_prune(self) -> bool:
        return False


@dataclass(frozen=True)
class Recorder:
    """Objective: the trial's number is that of the training in the list."""

    todo: Sequence[Item]
    data: dict[str, TaskData]
    encoders: dict[Encoder, str]
    cache: Path

    def __call__(self, trial: RemoteTrial) -> float:
        item = self.todo[trial.number]
        data, values = self.data[item.task], configurations()[item.configuration]
        values = {**values, "encoder.name": self.encoders[item.encoder]}
        prepared, curve = prepared_training(data, values, item.epochs, item.seed, self.cache)
        started = time.monotonic()
        train(prepared, RecordedReporter(trial))
        seconds = round(time.monotonic() - started, 3)
        line = Line(item, curve.validation[: item.epochs], curve.test[: item.epochs], seconds)
        trial.set_user_attr("line", asdict(line))
        return float(np.nan_to_num(curve.validation).max())


def prepared_training(
    data: TaskData, values: Mapping[str, Any], epochs: int, seed: int, cache: Path
) -> tuple[Prepared, Curve]:
    """Prepare the training of a configuration. Its evaluations are added to the curve."""
    config = nest(values)
    config["train"] |= {"epochs": epochs, "seed": seed}
    config["text"] = {"max_length": 128}
    prepared = prepare(
        read_config({"agent": "criteria", **config}),
        data.train,
        data.held_out,
        cache=cache,
        execution=local_execution(Execution(device="auto", precision="auto", compiled=False)),
    )
    curve = Curve({e.id: e.label or 0 for e in data.held_out.classes}, [], [])
    _watch(prepared, curve)
    return prepared, curve


def _watch(prepared: Prepared, curve: Curve) -> None:
    """Add every evaluation of a training to its curve."""
    evaluate = prepared.evaluate

    def added() -> Evaluation:
        evaluation = evaluate()
        curve.add(evaluation)
        return evaluation

    prepared.evaluate = added  # type: ignore[method-assign]


def halved(encoder: Path, into: Path) -> Path:
    """Write an encoder with the first half of the layers."""
    from safetensors.torch import load_file, save_file

    config = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"] // 2
    shutil.copytree(encoder, into)
    config["num_hidden_layers"] = layers
    (into / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = load_file(encoder / "model.safetensors")
    dropped = tuple(f"layer.{i}." for i in range(layers, 2 * layers))
    kept = {name: w for name, w in weights.items() if not any(d in name for d in dropped)}
    save_file(kept, into / "model.safetensors", metadata={"format": "pt"})
    return into


def record(todo: Sequence[Item], data: dict[str, TaskData], options: argparse.Namespace) -> None:
    """Train as many items as fit into the time, and append them to the output."""
    with tempfile.TemporaryDirectory() as folder, options.into.open("a", encoding="utf-8") as out:
        half = halved(options.encoder, Path(folder) / "half")
        encoders: dict[Encoder, str] = {"whole": str(options.encoder.resolve()), "half": str(half)}
        recorder = Recorder(todo, data, encoders, Path(folder) / "cache")

        def write(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            if "line" in trial.user_attrs:
                out.write(json.dumps(trial.user_attrs["line"]) + "\n")
                out.flush()

        with mps.shared(print, share_of_each(options.workers, GpuBudget().whole)):
            summary = supermax.optimize(
                optuna.create_study(sampler=optuna.samplers.RandomSampler(0)),
                recorder,
                len(todo),
                timeout=options.seconds,
                workers=options.workers,
                reuse_cells=True,
                run_dir=Path(folder) / "run",
                callbacks=[write],
                progress=False,
            )
        lines = read_lines(options.into).values()
        print(
            f"{sum(math.isnan(line.validation[-1]) for line in lines)} of {len(lines)} diverged."
        )
        print(summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", default=["long", "short", "seed"])
    options = parser.parse_args()
    files = sorted(options.data.glob("tweeteval-*.csv.gz"))
    data = {f.name.removeprefix("tweeteval-").split(".")[0]: read_task(f) for f in files}
    done = read_lines(options.into)
    wanted = [item for kind in options.kinds for item in items(kind, sorted(data), done)]
    todo = [item for item in wanted if item not in done]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} trainings are done.", flush=True)
    if todo:
        record(todo, data, options)


if __name__ == "__main__":
    main()
