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
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from common import Line, at_least, main, unlimited
from speed_tasks import Task, config_of

from supermax._util.threads import brief_spinning
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.training.loop import train_without_validation
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution

ROUNDS = 3
NOISE = 0.01  # variation of the resident memory between identical runs
RATE = 5e-4
# `bar` is the required speed-up over Trainer with defaults. Trainer pads to the longest sequence
# of a random batch, which costs little if texts have similar lengths: no threshold there.
TASKS = {
    "tiny-sentences": Task("tiny", 16, 128, pairs=2000, called="tiny, sentences"),
    "tiny-posts": Task(
        "tiny", 16, 512, bar=1.5, pairs=600, whole_posts=True, called="tiny, posts"
    ),
    "minilm-sentences": Task(
        "untrained/sentence-transformers/all-MiniLM-L6-v2", 16, 128, pairs=240,
        called="all-MiniLM-L6-v2, sentences",
    ),
}  # fmt: skip


def corpus_of(task: Task) -> Corpus:
    """Return labelled pairs of a criterion and a text: a sentence, or a whole post."""
    made = synthetic(difficulty=0.5, seed=0)
    examples = made.classes[: task.pairs]
    if task.whole_posts:
        posts = made.spans[: task.pairs]
        examples = tuple(replace(e, label=int(bool(e.spans)), spans=None) for e in posts)
    return Corpus("texts", made.label_names, examples)


def ours(task: Task, folder: Path) -> dict[str, float]:
    corpus, config = corpus_of(task), config_of(task, 1, rate=RATE, dropout=None)
    prepared = prepare(config, corpus, corpus, cache=folder, execution=Execution())
    losses: list[float] = []
    started = time.perf_counter()
    train_without_validation(prepared, 1, lambda _, loss: losses.append(loss))
    return {"seconds": time.perf_counter() - started, "loss": losses[-1]}


def trainer(task: Task, folder: Path, *, grouped: bool) -> dict[str, float]:
    """Train the same network, from the same initial weights, with Trainer as documented."""
    from speed_peers import Peer, training_arguments
    from transformers import Trainer

    corpus = corpus_of(task)
    peer = Peer(task, corpus, folder)
    arguments = training_arguments(
        task,
        folder,
        num_train_epochs=1,
        learning_rate=RATE,
        train_sampling_strategy="group_by_length" if grouped else "random",
        use_cpu=True,
        bf16=False,
    )
    run = Trainer(
        peer.network(dropout=None),
        arguments,
        train_dataset=peer.rows(corpus),
        processing_class=peer.tokenizer,
    )
    done = run.train()
    return {"seconds": done.metrics["train_runtime"], "loss": done.training_loss}


CONTENDERS: dict[str, Callable[[Task, Path], dict[str, float]]] = {
    "ours": ours,
    "grouped": partial(trainer, grouped=True),
    "defaults": partial(trainer, grouped=False),
}


def measured(contender: str, name: str, pairs: int, folder: str) -> dict[str, float]:
    """Run one contender in a separate process and return its figures. Ours has the environment of
    a cell."""
    command = [sys.executable, __file__, "--contender", contender, name, str(pairs), folder]
    env = os.environ | (brief_spinning(os.environ) if contender == "ours" else {})
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def bench(name: str, folder: str, scale: float) -> list[Line]:
    task = TASKS[name]
    pairs = int(task.pairs * scale)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for contender, runs in seen.items():
            runs.append(measured(contender, name, pairs, f"{folder}/{contender}"))
    rates = {name: pairs / median(runs, "seconds") for name, runs in seen.items()}
    peaks = {name: median(runs, "peak") / 1e6 for name, runs in seen.items()}
    losses = {name: median(runs, "loss") for name, runs in seen.items()}
    title, lines = f"{task.called} ({pairs})", []
    peers = (("grouped", "with length grouping", 1.0), ("defaults", "with defaults", task.bar))
    for name, how, bar in peers:
        cells = (
            f"{title}, Trainer {how}: samples/s",
            f"{rates['ours']:.1f} (loss {losses['ours']:.3f})",
            f"{rates[name]:.1f} (loss {losses[name]:.3f})",
        )
        ratio = rates["ours"] / rates[name]
        lines.append(unlimited(*cells, ratio) if bar is None else at_least(*cells, ratio, bar))
    least = min(peaks["grouped"], peaks["defaults"])
    ratio = peaks["ours"] / least
    lines.append(
        Line(
            f"{title}: peak resident memory",
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


def run_contender(contender: str, name: str, pairs: str, folder: str) -> None:
    found = CONTENDERS[contender](replace(TASKS[name], pairs=int(pairs)), Path(folder))
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
            {name: partial(bench, name) for name in TASKS},
            __doc__,
            peer="Trainer",
            packages=("supermax", "torch", "transformers", "accelerate"),
        )
    )
