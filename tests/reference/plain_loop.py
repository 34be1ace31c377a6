"""A plain training loop of PyTorch and transformers, in float64, beside a prepared training.

The plain side takes every effective batch at once. It sees the same examples in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from supermax.training.data.examples import Corpus
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import Indices, order
from supermax.training.steps.execution import Execution
from tests.training.corpora import config

BATCH, EPOCHS, RATE, DECAY, CLIP, WARMUP = 11, 2, 1e-3, 0.05, 0.5, 0.1


def prepared_in_float64(
    agent: str,
    data: tuple[Corpus, Corpus],
    cache: Path,
    micro_batch: int | None = None,
    **parts: Any,
) -> Prepared:
    """Prepare a training on the first corpus, evaluated on the second."""
    usual: dict[str, Any] = {
        "encoder": {"name": "tiny-bert"},
        "train": {"effective_batch": BATCH, "epochs": EPOCHS, "clip": CLIP},
        "optim": {"lr": RATE, "weight_decay": DECAY},
        "schedule": {"name": "linear", "warmup": WARMUP},
    }
    for key, value in parts.items():
        usual[key] = {**usual.get(key, {}), **value}
    made = prepare(
        config(agent, **usual), *data, cache=cache, execution=Execution(micro_batch=micro_batch)
    )
    made.model.double()
    return made


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def encoded(prepared: Prepared, examples: Any, length: int) -> Any:
    """Return questions and texts as the tokenizer of transformers pads them."""
    return prepared.tokenizers[0](
        [e.question for e in examples],
        [e.text for e in examples],
        truncation="only_second",
        max_length=length,
        padding=True,
        return_tensors="pt",
    )


def train_plainly(
    model: nn.Module, prepared: Prepared, loss_of: Callable[[Indices], Tensor]
) -> list[float]:
    """Train with AdamW, linear warmup and clipping; return the loss of every update.

    `loss_of` returns the loss of the model for the examples of an effective batch.
    """
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    lengths = prepared.train.lengths
    batches = [b for e in range(EPOCHS) for b in order(lengths, BATCH, prepared.seed, e)]
    schedule = get_linear_schedule_with_warmup(
        optimizer, round(WARMUP * len(batches)), len(batches)
    )
    model.train()
    taken = []
    for indices in batches:
        loss = loss_of(indices)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        taken.append(loss.item())
    assert len(taken) > EPOCHS
    return taken
