"""Network and data for the peers in speed.py: arguments of Trainer, and a plain PyTorch loop.

Task ──Peer──▶ tokenizer, rows, new networks ──▶ Trainer, BareLoop
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from speed_agents import label_of, logits_of, loss_of
from speed_tasks import CLIP, DEVICE, MIXED, WARMUP, NotAvailable, Task, config_of
from torch import Tensor
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    TrainingArguments,
)

from supermax.agents import agent_of
from supermax.training.config import ScheduleConfig
from supermax.training.data.examples import Corpus, Example
from supermax.training.models.assembly import Inputs, Model
from supermax.training.models.encoders import load_encoder, prepared_config
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import special_ids, tokenizer_for
from supermax.training.optim.schedules import make_schedule
from supermax.training.steps.batches import by_length, order
from supermax.training.steps.execution import autocast

EVALUATED = 64
"""Batch size of evaluation."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Row = dict[str, Any]


class Network(torch.nn.Module):
    """Model of Supermax with the interface that Trainer expects."""

    def __init__(self, model: Model, agent: str) -> None:
        super().__init__()
        self.model, self._agent = model, agent

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        inputs = Inputs(input_ids, attention_mask, token_type_ids)
        outputs = self.model(*[inputs] * len(self.model.encoders))
        return {"loss": loss_of(self._agent, outputs, labels), **logits_of(outputs)}


class Peer:
    """Tokenizer, rows and networks of a task, for the peers."""

    def __init__(self, what: Task, corpus: Corpus, folder: Path) -> None:
        self.what, self.source = what, find(what.encoder)
        self._labels = len(corpus.label_names) or 2
        texts = [text for e in corpus.examples for text in (e.question, e.text) if text]
        self.tokenizer = tokenizer_for(self.source, texts, folder)

    def network(self, dropout: float | None = 0.1) -> Network:
        """Return a new network with the same initial weights."""
        torch.manual_seed(1)
        made = prepared_config(self.source, dropout, dropout, **special_ids(self.tokenizer))
        agent = self.what.agent
        encoders = [load_encoder(self.source, made) for _ in range(agent_of(agent).encoders)]
        return Network(Model(config_of(self.what), encoders, self._labels), agent)

    def rows(self, corpus: Corpus, **more: object) -> list[Row]:
        return [self._row(example, more) for example in corpus.examples]

    def _row(self, example: Example, more: dict[str, object]) -> Row:
        settings: Any = {
            "truncation": True,
            "max_length": self.what.length,
            "return_token_type_ids": True,
            "return_offsets_mapping": True,
            **more,
        }
        texts = [[text] for text in (example.question, example.text) if text]
        encoded = self.tokenizer(*texts, **settings)
        row = {name: encoded[name][0] for name in INPUTS}
        # The collator for tags pads the column labels.
        column = "labels" if self.what.agent == "token-classification" else "label"
        return {**row, column: label_of(self.what.agent, example, encoded, self._labels)}

    @property
    def collator(self) -> DataCollatorWithPadding | DataCollatorForTokenClassification:
        """Collator of Trainer."""
        if self.what.agent == "token-classification":
            return DataCollatorForTokenClassification(self.tokenizer)
        return DataCollatorWithPadding(self.tokenizer)


def training_arguments(what: Task, folder: Path, **more: object) -> TrainingArguments:
    """Return arguments for bf16, dynamic padding and grouping by length."""
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": what.batch,
        "per_device_eval_batch_size": EVALUATED,
        "warmup_steps": WARMUP,
        "max_grad_norm": CLIP,
        "bf16": DEVICE == "cuda",
        "use_cpu": DEVICE == "cpu",
        "train_sampling_strategy": "group_by_length",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "disable_tqdm": True,
    }
    return TrainingArguments(**(usual | more))


class BareLoop:
    """Plain PyTorch, written well.

    bf16 autocast, dynamic padding, fused AdamW, and one CPU–GPU synchronisation per epoch.
    """

    def __init__(
        self, peer: Peer, rows: list[Row], rate: float, epochs: int, dropout: float = 0.1
    ) -> None:
        if peer.what.agent != "criteria":
            raise NotAvailable(f"the plain loop has no data of {peer.what.agent}")
        self._rows, self._batch = rows, peer.what.batch
        self._pad = int(peer.tokenizer.pad_token_id)
        self._lengths = np.array([len(row["input_ids"]) for row in rows])
        self._network = peer.network(dropout).to(DEVICE)
        self._optimizer = torch.optim.AdamW(
            self._network.parameters(), lr=rate, weight_decay=0.0, fused=True
        )
        updates = -(-len(rows) // self._batch) * epochs
        factor = make_schedule(ScheduleConfig(name="linear", warmup=WARMUP), updates)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, factor)

    def epoch(self, number: int) -> float:
        """Train one epoch and return the mean loss, which synchronises."""
        self._network.train()
        batches = order(self._lengths, self._batch, 1, number)
        total = torch.zeros((), device=DEVICE)
        for indices in batches:
            batch = on_device(collated([self._rows[i] for i in indices], self._pad))
            with autocast(MIXED):
                loss = self._network(**batch)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._network.parameters(), CLIP)
            self._optimizer.step()
            self._schedule.step()
            self._optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
        return float(total) / len(batches)

    def score(self, rows: list[Row]) -> float:
        """Return macro F1."""
        self._network.eval()
        found = np.zeros(len(rows), dtype=np.int64)
        with torch.inference_mode():
            for indices in by_length(np.array([len(r["input_ids"]) for r in rows]), EVALUATED):
                batch = on_device(collated([rows[i] for i in indices], self._pad))
                with autocast(MIXED):
                    logits = self._network(**batch)["logits"]
                found[indices] = logits.argmax(-1).cpu().numpy()
        return macro_f1([row["label"] for row in rows], found)


def collated(rows: list[Row], pad: int) -> dict[str, Tensor]:
    """Return a batch on the host, padded to its longest sequence."""
    length = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}
    batch = {
        name: torch.tensor([row[name] + [fill] * (length - len(row[name])) for row in rows])
        for name, fill in fills.items()
    }
    return batch | {"labels": torch.tensor([row["label"] for row in rows])}


def on_device(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    if DEVICE == "cpu":
        return batch
    return {k: v.pin_memory().to(DEVICE, non_blocking=True) for k, v in batch.items()}


def macro_f1(truth: ArrayLike, found: ArrayLike) -> float:
    from sklearn.metrics import f1_score  # 100 MB that training.py must not count

    return float(f1_score(truth, found, average="macro"))
