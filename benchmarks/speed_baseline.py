"""Search with the fp32 baseline: one padded length, a plain DataLoader, blocking launches, and a
new network per trial.

As a program this is one of the workers that share a study. At its time limit it stops and prints
the number of steps that it made.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import optuna
import torch
from speed_peers import EVALUATED, Peer, Row, macro_f1
from speed_tasks import (
    CLIP,
    DEVICE,
    EPOCHS,
    TASKS,
    WARMUP,
    Choice,
    Line,
    choice,
    corpus_of,
    validation_of,
)
from torch.utils.data import DataLoader, Dataset
from transformers import get_linear_schedule_with_warmup

from supermax.training.prepare import max_input_length

PADDED_LENGTH = 384
WARM_UP = 8
"""Steps of a worker before its first trial."""
Batches = DataLoader[Row]


def open_study(storage: str | None, number: int = 0) -> optuna.Study:
    """Open the study and queue the first `number` trials of the list."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="list", storage=storage, direction="maximize", load_if_exists=True
    )
    for i in range(number):
        study.enqueue_trial(vars(choice(i)))
    return study


def suggested(trial: optuna.Trial) -> Choice:
    """Return the queued hyperparameters of a trial."""
    return Choice(trial.suggest_float("rate", 0, 1), trial.suggest_float("dropout", 0, 1))


class BaselineLoop:
    """Training as in the module's docstring: the baseline, not a recommendation."""

    def __init__(self, peer: Peer, rows: list[Row], some: list[Row], tried: Choice) -> None:
        self._network = peer.network(tried.dropout).to(DEVICE)
        own, other = cast("Dataset[Row]", rows), cast("Dataset[Row]", some)  # lists serve as one
        self._batches: Batches = DataLoader(
            own, batch_size=peer.what.batch, shuffle=True, collate_fn=_collated
        )
        self._some: Batches = DataLoader(other, batch_size=EVALUATED, collate_fn=_collated)
        parameters = self._network.parameters()
        self._optimizer = torch.optim.AdamW(parameters, lr=tried.rate, weight_decay=0.0)
        updates = len(self._batches) * EPOCHS
        self._schedule = get_linear_schedule_with_warmup(
            self._optimizer, round(WARMUP * updates), updates
        )

    def epoch(self, steps: int | None = None, taken: Callable[[], None] = lambda: None) -> float:
        """Train an epoch, or its first `steps`. `taken` is called after each step."""
        self._network.train()
        total = 0.0
        for batch in islice(self._batches, steps):
            self._optimizer.zero_grad()
            loss = self._network(**_moved(batch))["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._network.parameters(), CLIP)
            self._optimizer.step()
            self._schedule.step()
            total += loss.item()
            taken()
        return total / len(self._batches)

    def score(self) -> float:
        self._network.eval()
        truth, found = [], []
        with torch.no_grad():
            for batch in self._some:
                logits = self._network(**_moved(batch))["logits"]
                truth += batch["labels"].tolist()
                found += logits.argmax(-1).tolist()
        return macro_f1(truth, np.array(found))


def _collated(rows: list[Row]) -> dict[str, torch.Tensor]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch = {name: torch.tensor([row[name] for row in rows]) for name in names}
    return batch | {"labels": torch.tensor([row["label"] for row in rows])}


def _moved(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: part.to(DEVICE) for name, part in batch.items()}


class Clock:
    """Count of steps and their duration in seconds, with a time limit."""

    def __init__(self, limit: float) -> None:
        self._limit, self._begun = limit, 0.0
        self.steps, self.seconds = 0, 0.0

    def begin(self) -> None:
        self._begun = self._begun or time.time()

    def tick(self) -> None:
        """Count a step. Raise TrialPruned at the time limit."""
        self.steps += 1
        self.seconds = time.time() - self._begun
        if self.seconds > self._limit:
            raise optuna.TrialPruned

    def end(self) -> None:
        self.seconds = time.time() - self._begun

    @property
    def over(self) -> bool:
        return self.seconds > self._limit


def work(task: str, storage: str, number: int, seconds: float, folder: Path) -> Line:
    """Run `number` trials of the study beside the other workers, within the time limit."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    what = TASKS[task]
    corpus = corpus_of(what)
    peer = Peer(what, corpus, folder)
    padded: dict[str, object] = {
        "max_length": min(PADDED_LENGTH, max_input_length(peer.source)), "padding": "max_length"
    }  # fmt: skip
    rows, some = peer.rows(corpus, **padded), peer.rows(validation_of(corpus), **padded)

    BaselineLoop(peer, rows, some, choice(0)).epoch(WARM_UP)  # so that the first trial is warm

    clock = Clock(seconds)

    def objective(trial: optuna.Trial) -> float:
        clock.begin()
        loop = BaselineLoop(peer, rows, some, suggested(trial))
        values = []
        for epoch in range(EPOCHS):
            loop.epoch(taken=clock.tick)
            values.append(loop.score())
            trial.report(values[-1], epoch)
        clock.end()
        return max(values)

    study = open_study(storage)
    for _ in range(number):
        if not clock.over:
            study.optimize(objective, n_trials=1)
    each = EPOCHS * -(-len(rows) // what.batch)
    return {"steps": clock.steps, "seconds": clock.seconds, "steps_of_a_trial": each}


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker of the fp32 baseline.")
    parser.add_argument("task")
    parser.add_argument("storage")
    parser.add_argument("number", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work_of = options.task, options.storage, options.number, options.seconds
        print(json.dumps(work(*work_of, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
