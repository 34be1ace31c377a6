"""Measure training throughput on the CPU against Hugging Face Trainer in the same run.

    make bench                       everything
    python benchmarks/training.py --scale 0.3

Contenders train the same encoder, from the same configuration, on the same texts, with the same
effective batch, optimizer, schedule and clipping. Each runs in a separate process, in turn, three
times, with the disk cache of its last run, as in a search. The table has the median rate and the
median peak of resident memory. Work before the first step is not timed.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from common import Line, main
from torch.nn.functional import cross_entropy

from supermax.training.config import Config, read_config
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.training.loop import train_without_validation
from supermax.training.models.assembly import Inputs, Model
from supermax.training.models.encoders import load_encoder, prepared_config
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import special_ids, tokenizer_for
from supermax.training.prepare import prepare
from supermax.training.steps.base import Execution

ROUNDS = 3
NOISE = 0.01  # variation of the resident memory between identical runs
EFFECTIVE_BATCH, RATE, WARMUP = 16, 5e-4, 0.1


@dataclass(frozen=True)
class Task:
    """An encoder and its texts: short sentences as for the criteria agent, or whole posts."""

    encoder: str
    kind: str
    many: int
    length: int
    bar: float | None
    """Required speed-up over Trainer with defaults; None: no threshold.

    Trainer pads to the longest sequence of a random batch, which costs little if texts have
    similar lengths: such tasks have no threshold.
    """

    @property
    def title(self) -> str:
        return f"{self.encoder.rpartition('/')[2]}, {self.many} {self.kind}"


TASKS = {
    "tiny-sentences": Task("tiny", "sentences", 2000, 128, None),
    "tiny-posts": Task("tiny", "posts", 600, 512, 1.5),
    "minilm-sentences": Task(
        "untrained/sentence-transformers/all-MiniLM-L6-v2", "sentences", 240, 128, None
    ),
}


def corpus_of(task: Task) -> Corpus:
    """Return labelled pairs of a criterion and a text."""
    made = synthetic(difficulty=0.5, seed=0)
    if task.kind == "sentences":
        examples = made.classes[: task.many]
    else:
        posts = made.spans[: task.many]
        examples = tuple(replace(e, label=int(bool(e.spans)), spans=None) for e in posts)
    return Corpus(task.kind, made.label_names, examples)


def config_of(task: Task) -> Config:
    return read_config(
        {
            "encoder": {"name": task.encoder},
            "text": {"max_length": task.length, "doc_stride": 0},
            "train": {"effective_batch": EFFECTIVE_BATCH, "epochs": 1},
            "optim": {"lr": RATE, "weight_decay": 0.0},
            "schedule": {"name": "linear", "warmup": WARMUP},
        }
    )


def ours(task: Task, folder: Path) -> dict[str, float]:
    corpus = corpus_of(task)
    prepared = prepare(config_of(task), corpus, corpus, cache=folder, execution=Execution())
    losses: list[float] = []
    started = time.perf_counter()
    train_without_validation(prepared, 1, lambda _, loss: losses.append(loss))
    return {"seconds": time.perf_counter() - started, "loss": losses[-1]}


def trainer(task: Task, folder: Path, *, grouped: bool) -> dict[str, float]:
    """Train the same network, from the same initial weights, with Trainer as documented."""
    from transformers import Trainer, TrainingArguments

    corpus = corpus_of(task)
    source = find(task.encoder)
    texts = [text for e in corpus.examples for text in (e.question, e.text) if text]
    tokenizer = tokenizer_for(source, texts, folder)
    torch.manual_seed(1)
    encoder = load_encoder(source, prepared_config(source, None, None, **special_ids(tokenizer)))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(config_of(task), [encoder], 2)

        def forward(self, input_ids, attention_mask, token_type_ids, labels):  # type: ignore[no-untyped-def]
            logits = self.model(Inputs(input_ids, attention_mask, token_type_ids)).classes
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    cut = {"truncation": True, "max_length": task.length, "return_token_type_ids": True}
    rows = [{**tokenizer(e.question, e.text, **cut), "label": e.label} for e in corpus.examples]
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=EFFECTIVE_BATCH,
        num_train_epochs=1,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        max_grad_norm=1.0,
        train_sampling_strategy="group_by_length" if grouped else "random",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    run = Trainer(Network(), arguments, train_dataset=rows, processing_class=tokenizer)
    done = run.train()
    return {"seconds": done.metrics["train_runtime"], "loss": done.training_loss}


CONTENDERS = {
    "ours": ours,
    "grouped": lambda *how: trainer(*how, grouped=True),
    "defaults": lambda *how: trainer(*how, grouped=False),
}


def measured(contender: str, task: Task, folder: str) -> dict[str, float]:
    """Run one contender in a separate process and return its figures."""
    command = [
        sys.executable,
        __file__,
        "--contender",
        contender,
        json.dumps(asdict(task)),
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def bench(task: Task, folder: str, scale: float) -> list[Line]:
    task = replace(task, many=int(task.many * scale))
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, runs in seen.items():
            runs.append(measured(name, task, f"{folder}/{name}"))
    rates = {name: task.many / median(runs, "seconds") for name, runs in seen.items()}
    peaks = {name: median(runs, "peak") / 1e6 for name, runs in seen.items()}
    losses = {name: median(runs, "loss") for name, runs in seen.items()}
    lines = []
    for name, bar in (("grouped", 1.0), ("defaults", task.bar)):
        ratio = rates["ours"] / rates[name]
        lines.append(
            Line(
                f"{task.title}, Trainer {_with(name)}: samples/s",
                f"{rates['ours']:.1f} (loss {losses['ours']:.3f})",
                f"{rates[name]:.1f} (loss {losses[name]:.3f})",
                ratio,
                "(no threshold)" if bar is None else f"at least {bar:g}×",
                bar is None or ratio >= bar,
            )
        )
    least = min(peaks["grouped"], peaks["defaults"])
    ratio = peaks["ours"] / least
    lines.append(
        Line(
            f"{task.title}: peak resident memory",
            f"{peaks['ours']:.0f} MB",
            f"{least:.0f} MB",
            ratio,
            f"at most 1× (± {NOISE:.0%})",
            ratio <= 1 + NOISE,
        )
    )
    return lines


def median(runs: list[dict[str, float]], what: str) -> float:
    return statistics.median(run[what] for run in runs)


def _with(name: str) -> str:
    return "with length grouping" if name == "grouped" else "with defaults"


def run_contender(name: str, task: str, folder: str) -> None:
    found = CONTENDERS[name](Task(**json.loads(task)), Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**found, "peak": peak}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        run_contender(*sys.argv[2:])
        sys.exit(0)
    sys.exit(
        main(
            "training",
            "Training on the CPU, compared with Hugging Face Trainer",
            {name: partial(bench, task) for name, task in TASKS.items()},
            __doc__,
            peer="Trainer",
            packages=("supermax", "torch", "transformers", "accelerate"),
        )
    )
