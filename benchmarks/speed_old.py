"""The old way of a search, as a worker of it: fp32, every sequence padded to one width, batches
from a plain DataLoader, each kernel waited for, a new network for each trial.

As a program this is one of the workers that share a study. When its time is up it stops where it
is, and says how far it came.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

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

from supermax.training.prepare import longest

WIDTH = 384
WARM = 8
"""Steps of a worker before its first trial."""
Batches = DataLoader[Any]


def open_study(storage: str | None, number: int = 0) -> optuna.Study:
    """With so many trials of the list queued."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="list", storage=storage, direction="maximize", load_if_exists=True
    )
    for i in range(number):
        study.enqueue_trial(vars(choice(i)))
    return study


def suggested(trial: optuna.Trial) -> Choice:
    """What is queued for it."""
    return Choice(trial.suggest_float("rate", 0, 1), trial.suggest_float("dropout", 0, 1))


class _Rows(Dataset[Row]):
    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Row:
        return self._rows[place]


class OldLoop:
    def __init__(self, peer: Peer, rows: list[Row], some: list[Row], tried: Choice) -> None:
        self._network = peer.network(tried.dropout).to(DEVICE)
        self._batches: Batches = DataLoader(
            _Rows(rows), batch_size=peer.what.batch, shuffle=True, collate_fn=_collated
        )
        self._some: Batches = DataLoader(_Rows(some), batch_size=EVALUATED, collate_fn=_collated)
        parameters = self._network.parameters()
        self._optimizer = torch.optim.AdamW(parameters, lr=tried.rate, weight_decay=0.0)
        updates = len(self._batches) * EPOCHS
        self._schedule = get_linear_schedule_with_warmup(
            self._optimizer, round(WARMUP * updates), updates
        )

    def epoch(self, steps: int | None = None, taken: Callable[[], None] = lambda: None) -> float:
        """All of it, or its first steps, each of which is told."""
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
    """Steps that were taken, and in how many seconds."""

    def __init__(self, limit: float) -> None:
        self._limit, self._begun = limit, 0.0
        self.steps, self.seconds = 0, 0.0

    def begin(self) -> None:
        self._begun = self._begun or time.time()

    def tick(self) -> None:
        """Ends the trial when the time is up."""
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
    """So many trials of the study, beside the other workers, or as far as it comes."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    what = TASKS[task]
    corpus = corpus_of(what)
    peer = Peer(what, corpus, folder)
    wide: dict[str, Any] = {
        "max_length": min(WIDTH, longest(peer.source)), "padding": "max_length"
    }  # fmt: skip
    rows, some = peer.rows(corpus, **wide), peer.rows(validation_of(corpus), **wide)

    OldLoop(peer, rows, some, choice(0)).epoch(WARM)  # so that no first trial has that to do

    clock = Clock(seconds)

    def objective(trial: optuna.Trial) -> float:
        clock.begin()
        loop = OldLoop(peer, rows, some, suggested(trial))
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
    parser = argparse.ArgumentParser(description="One of the workers of the old way.")
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
