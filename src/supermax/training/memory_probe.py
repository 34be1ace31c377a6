"""Memory and time of a few real training steps on random tokens.

Config, Execution ──probe()──▶ Peak
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from supermax.agents import agent_of
from supermax.training.config import Config
from supermax.training.data.offsets import Array
from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.data.tokens import Tokens
from supermax.training.models.adapters import add_adapter
from supermax.training.models.assembly import Model
from supermax.training.models.attention import without_cudnn_attention
from supermax.training.models.encoders import load_encoder, prepared_config
from supermax.training.prepare import encoders_of, make_executor, make_step
from supermax.training.steps.batches import collate
from supermax.training.steps.execution import Execution, autocast
from supermax.training.steps.executors import EpochUpdates
from supermax.training.steps.step import TrainingStep


@dataclass(frozen=True)
class Peak:
    """Peak memory of the device in bytes, and seconds of a micro-step in the fastest update."""

    allocated: int
    reserved: int
    """Bytes of PyTorch's caching allocator."""
    seconds: float


def probe_memory(
    config: Config, execution: Execution, length: int, *, micros: int = 2, updates: int = 3
) -> Peak:
    """Run `updates` updates with the step executor of a trial and return their peak.

    Each update has `micros` micro-steps of `execution.micro_batch` sequences of `length` tokens.
    On a CPU memory is not measured: both sizes are 0.
    """
    on_gpu = execution.device.startswith("cuda")
    size = execution.micro_batch or config.train.effective_batch
    if execution.threads:
        torch.set_num_threads(execution.threads)
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = _build_step(config, execution)
    data = _random_data(step, size * micros, length)
    executor = make_executor(step, data, (0,) * len(data.views))
    step.model.train()
    executor.begin(EpochUpdates([np.arange(size * micros)] * updates, [1.0] * updates), 0)
    seconds = float("inf")
    for update in range(updates):
        started = time.perf_counter()
        executor.take(update)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = min(seconds, (time.perf_counter() - started) / micros)
    if not on_gpu:
        return Peak(0, 0, seconds)
    if executor.why_eager is None:
        _run_evaluation(step, data)
    return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), seconds)


def _run_evaluation(step: TrainingStep, data: TokenizedSplit) -> None:
    """Evaluate one sequence: evaluation cannot reuse the memory pool of captured CUDA graphs."""
    step.model.eval()
    batch = collate(data.views, (0,) * len(data.views), data.chosen[:1]).to(step.execution.device)
    with torch.inference_mode(), without_cudnn_attention(), autocast(step.execution):
        step.model(*batch.inputs)


def _build_step(config: Config, execution: Execution) -> TrainingStep:
    dropouts = config.encoder.dropout, config.encoder.attention_dropout
    sources = encoders_of(config)
    with torch.device(execution.device):  # initialising on the device is faster
        encoders = [load_encoder(source, prepared_config(source, *dropouts)) for source in sources]
        model = Model(config, encoders, classes=2)
        add_adapter(model, config.adapter, [source.name for source in sources])
    return make_step(model.to(execution.device), None, config, execution)


def _random_data(step: TrainingStep, count: int, length: int) -> TokenizedSplit:
    """Return random sequences of `length` tokens, the last one shorter.

    The padding makes the batch need an attention mask, as the batches of a trial do.
    """
    lengths = np.full(count, length)
    lengths[-1] -= length // 4
    begin = np.concatenate([[0], np.cumsum(lengths)])
    ones, random = np.ones(count, dtype=np.int64), np.random.Generator(np.random.PCG64(0))
    views = []
    label: Array | NDArray[np.floating[Any]] = ones
    if agent_of(step.config.agent).label_sets:
        label = np.ones((count, 2), dtype=np.float32)
    for encoder in step.model.encoders:
        ids = random.integers(5, encoder.model.config.vocab_size, begin[-1])
        no_offsets = np.full((len(ids), 2), -1)
        classes = np.ones(len(ids) if step.model.token_head is not None else 0, dtype=np.int16)
        targets = (label, ones, ones, no_offsets, classes, classes)
        views.append(Tokens(ids, begin, lengths, ones - 1, *targets))
    return TokenizedSplit((), tuple(views), np.arange(count))
