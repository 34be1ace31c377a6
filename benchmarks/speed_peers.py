"""The same network for the others in speed.py: Trainer's arguments, and a plain PyTorch loop.

Task ──Peer──▶ tokenizer, rows, new networks ──▶ Trainer, BareLoop
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from speed_tasks import CLIP, DEVICE, HALF, WARMUP, Task, config_of
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import TrainingArguments

from supermax.training.batches import by_length, order
from supermax.training.config import ScheduleConfig
from supermax.training.data.examples import Corpus
from supermax.training.encoders import load
from supermax.training.encoders import prepared as prepared_config
from supermax.training.models import Inputs, Model
from supermax.training.schedules import make_schedule
from supermax.training.sources import find
from supermax.training.steps import autocast
from supermax.training.tokenizers import special_ids, tokenizer_for

EVALUATED = 64
"""Sequences at a time."""
Row = dict[str, Any]


class Network(torch.nn.Module):
    """Our model, as Trainer calls one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        logits = self.model(Inputs(input_ids, attention_mask, token_type_ids)).classes
        return {"loss": cross_entropy(logits.float(), labels), "logits": logits}


class Peer:
    """A task as the others see it."""

    def __init__(self, what: Task, corpus: Corpus, folder: Path) -> None:
        self.what, self.source = what, find(what.encoder)
        texts = [text for e in corpus.examples for text in (e.question, e.text) if text]
        self.tokenizer = tokenizer_for(self.source, texts, folder)

    def network(self, dropout: float = 0.1) -> Network:
        """A new one each time."""
        torch.manual_seed(1)
        made = prepared_config(self.source, dropout, dropout, **special_ids(self.tokenizer))
        return Network(Model(config_of(self.what), [load(self.source, made)], 2))

    def rows(self, corpus: Corpus, **more: Any) -> list[Row]:
        cut = {"truncation": True, "max_length": self.what.length, "return_token_type_ids": True}
        return [
            {**self.tokenizer(e.question, e.text, **(cut | more)), "label": e.label}
            for e in corpus.examples
        ]


def training_arguments(what: Task, folder: Path, **more: Any) -> TrainingArguments:
    """bf16, dynamic padding, sequences of like length together."""
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=what.batch,
        per_device_eval_batch_size=EVALUATED,
        warmup_steps=WARMUP,
        max_grad_norm=CLIP,
        bf16=DEVICE == "cuda",
        use_cpu=DEVICE == "cpu",
        train_sampling_strategy="group_by_length",
        report_to=[],
        save_strategy="no",
        logging_strategy="epoch",
        disable_tqdm=True,
        **more,
    )


class BareLoop:
    """PyTorch as a good practitioner writes it: half precision, padding to the longest of a
    batch, like lengths together, the fused optimizer, and no word from the device but once an
    epoch."""

    def __init__(
        self, peer: Peer, rows: list[Row], rate: float, epochs: int, dropout: float = 0.1
    ) -> None:
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
        """Train for one; gives the mean loss, for which it waits."""
        self._network.train()
        batches = order(self._lengths, self._batch, 1, number)
        total = torch.zeros((), device=DEVICE)
        for indices in batches:
            batch = on_device(collated([self._rows[i] for i in indices], self._pad))
            with autocast(HALF):
                loss = self._network(**batch)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._network.parameters(), CLIP)
            self._optimizer.step()
            self._schedule.step()
            self._optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
        return float(total) / len(batches)

    def score(self, rows: list[Row]) -> float:
        """Macro F1."""
        self._network.eval()
        found = np.zeros(len(rows), dtype=np.int64)
        with torch.inference_mode():
            for indices in by_length(np.array([len(r["input_ids"]) for r in rows]), EVALUATED):
                batch = on_device(collated([rows[i] for i in indices], self._pad))
                with autocast(HALF):
                    logits = self._network(**batch)["logits"]
                found[indices] = logits.argmax(-1).cpu().numpy()
        return macro_f1([row["label"] for row in rows], found)


def collated(rows: list[Row], pad: int) -> dict[str, Tensor]:
    """On the host, padded to the longest."""
    width = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}
    batch = {
        name: torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
        for name, fill in fills.items()
    }
    return batch | {"labels": torch.tensor([row["label"] for row in rows])}


def on_device(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    if DEVICE == "cpu":
        return batch
    return {k: v.pin_memory().to(DEVICE, non_blocking=True) for k, v in batch.items()}


def macro_f1(truth: Any, found: NDArray[Any]) -> float:
    return float(f1_score(truth, found, average="macro"))
