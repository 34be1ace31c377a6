"""A few real steps of a configuration on made-up tokens, and what memory and time they took.

Config, Execution ──probe()──▶ Peak
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from supermax.training.attention import unplanned
from supermax.training.batches import collate
from supermax.training.config import Config
from supermax.training.encoders import load
from supermax.training.encoders import prepared as prepared_config
from supermax.training.models import Model
from supermax.training.optimizers import make_optimizer, parameter_groups
from supermax.training.prepare import Data, encoders_of, way_to_step
from supermax.training.sources import Source
from supermax.training.steps import EagerStep, Execution, autocast, on
from supermax.training.tokens import Tokens
from supermax.training.ways import Epoch


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
    tokens, taken as a trial takes them. On a CPU the peak is not looked at, and is 0."""
    on_gpu = execution.device.startswith("cuda")
    size = execution.micro_batch or config.train.effective_batch
    if execution.threads:
        torch.set_num_threads(execution.threads)
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = _step(config, execution)
    data = _data(step.model, size * micros, length)
    way = way_to_step(step, data, (0,) * len(data.views))
    step.model.train()
    way.begin(Epoch([np.arange(size * micros)] * updates, [1.0] * updates), 0)
    seconds = float("inf")
    for update in range(updates):
        started = time.perf_counter()
        way.take(update)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = min(seconds, (time.perf_counter() - started) / micros)
    if not on_gpu:
        return Peak(0, 0, seconds)
    if way.why_eager is None:
        _look(step, data)
    return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), seconds)


def _look(step: EagerStep, data: Data) -> None:
    """Evaluation does not share its memory with recordings: one sequence, as the least."""
    step.model.eval()
    some = on(collate(data.views, (0,) * len(data.views), data.chosen[:1]), step.execution.device)
    with torch.inference_mode(), unplanned(), autocast(step.execution):
        step.model(*some.inputs)


def _step(config: Config, execution: Execution) -> EagerStep:
    dropouts = config.encoder.dropout, config.encoder.attention_dropout
    with torch.device(execution.device):  # initialised there, which is quicker
        encoders = [_encoder(source, dropouts) for source in encoders_of(config)]
        model = Model(config, encoders, classes=2)
    model.to(execution.device)
    if execution.checkpoint_activations:
        model.checkpoint_activations()
    groups = parameter_groups(model, config.optim, model.layers_above())
    optimizer = make_optimizer(groups, config.optim, execution.device)
    return EagerStep(model, optimizer, config, None, execution)


def _encoder(source: Source, dropouts: tuple[float | None, float | None]) -> Any:
    return load(source, prepared_config(source, *dropouts))


def _data(model: Model, count: int, length: int) -> Data:
    """As long as they are all but one: a batch without padding needs no mask, which is less."""
    lengths = np.full(count, length)
    lengths[-1] -= length // 4
    begin = np.concatenate([[0], np.cumsum(lengths)])
    ones, random = np.ones(count, dtype=np.int64), np.random.Generator(np.random.PCG64(0))
    views = []
    for encoder in model.encoders:
        words = int(encoder.model.config.vocab_size)  # type: ignore[union-attr,arg-type]
        ids = random.integers(5, words, begin[-1])
        nowhere = np.full((len(ids), 2), -1)
        views.append(Tokens(ids, begin, lengths, ones - 1, ones, ones, ones, nowhere))
    return Data((), tuple(views), np.arange(count))
