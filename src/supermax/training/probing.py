"""A few real steps of a configuration on made-up tokens, and what memory and time they took.

Config, Execution ──probe()──▶ Peak
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import torch

from supermax.training.batches import Batch
from supermax.training.config import Config
from supermax.training.encoders import load
from supermax.training.encoders import prepared as prepared_config
from supermax.training.models import Inputs, Model
from supermax.training.optimizers import make_optimizer, parameter_groups
from supermax.training.prepare import encoders_of
from supermax.training.sources import Source
from supermax.training.steps import EagerStep, Execution, shares


@dataclass(frozen=True)
class Peak:
    """Bytes on the device, at their highest, and seconds of a micro-step."""

    allocated: int
    reserved: int
    seconds: float


def probe(
    config: Config, execution: Execution, length: int, *, micros: int = 2, updates: int = 3
) -> Peak:
    """Updates of `micros` micro-steps each, of `execution.micro_batch` sequences of `length`
    tokens. On a CPU the peak is not looked at, and is 0."""
    on_gpu = execution.device.startswith("cuda")
    size = execution.micro_batch or config.train.effective_batch
    if execution.threads:
        torch.set_num_threads(execution.threads)
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = _step(config, execution)
    batch = _batch(step.model, size, length, execution.device)
    share = shares(batch.labels, batch.starts, None)
    step.model.train()
    seconds = float("inf")
    for _ in range(updates):
        started = time.perf_counter()
        for _ in range(micros):
            step.micro(batch, share)
        step.update()
        if on_gpu:
            torch.cuda.synchronize()
        seconds = min(seconds, (time.perf_counter() - started) / micros)
    if not on_gpu:
        return Peak(0, 0, seconds)
    return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), seconds)


def _step(config: Config, execution: Execution) -> EagerStep:
    dropouts = config.encoder.dropout, config.encoder.attention_dropout
    with torch.device(execution.device):  # initialised there, which is quicker
        encoders = [_encoder(source, dropouts) for source in encoders_of(config)]
        model = Model(config, encoders, classes=2)
    model.to(execution.device)
    if execution.checkpoint_activations:
        model.checkpoint_activations()
    groups = parameter_groups(model, config.optim, model.depth(), model.layers)
    optimizer = make_optimizer(groups, config.optim, execution.device)
    return EagerStep(model, optimizer, config, None, execution)


def _encoder(source: Source, dropouts: tuple[float | None, float | None]) -> Any:
    return load(source, prepared_config(source, *dropouts))


def _batch(model: Model, size: int, length: int, device: str) -> Batch:
    """As long as they are all but one: a batch without padding needs no mask, which is less."""
    mask = torch.ones(size, length, dtype=torch.int64, device=device)
    mask[-1, length - length // 4 :] = 0
    inputs = []
    for encoder in model.encoders:
        words = int(encoder.model.config.vocab_size)  # type: ignore[union-attr,arg-type]
        ids = torch.randint(5, words, (size, length), device=device)
        inputs.append(Inputs(ids, mask, torch.zeros_like(ids)))
    targets = torch.ones(size, dtype=torch.int64, device=device)
    return Batch(tuple(inputs), targets, targets, targets)
