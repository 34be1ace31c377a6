"""The old way of a search, as a worker of it: fp32, every sequence padded to one width, batches
from a plain DataLoader, each kernel waited for, a new network for each trial.

As a program this is one of the workers that share a study.
"""

from __future__ import annotations

import argparse
import tempfile
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

    def epoch(self, steps: int | None = None) -> float:
        """All of it, or its first steps."""
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


def work(task: str, storage: str, number: int, folder: Path) -> None:
    """So many trials of the study, beside the other workers."""
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

    def objective(trial: optuna.Trial) -> float:
        loop = OldLoop(peer, rows, some, suggested(trial))
        values = []
        for epoch in range(EPOCHS):
            loop.epoch()
            values.append(loop.score())
            trial.report(values[-1], epoch)
        return max(values)

    open_study(storage).optimize(objective, n_trials=number)


def main() -> None:
    parser = argparse.ArgumentParser(description="One of the workers of the old way.")
    parser.add_argument("task")
    parser.add_argument("storage")
    parser.add_argument("number", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work(options.task, options.storage, options.number, Path(folder))


if __name__ == "__main__":
    main()
