"""Short real probes of an encoder in a trial's cell, before the trial: what they take of memory
and time is known to every plan from then on.

trial.plan["probes"] ──probed()──▶ Measured ──▶ Book
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from supermax.engine.shortage import shortage
from supermax.memory.learning import Measured
from supermax.memory.probes import STEPS
from supermax.training.config import Config
from supermax.training.probing import probe
from supermax.training.steps import Execution
from supermax.words import in_short

_MICROS = 2
"""Micro-steps of an update, where there are several: their gradients add up."""


def probed(
    config: Config, execution: Execution, wanted: Sequence[dict[str, Any]]
) -> list[Measured]:
    """What the steps took. One that fails costs the trial nothing: if the trial itself cannot be
    trained, it will say so."""
    return [found for one in wanted for found in _tried(config, execution, **one)]


def _tried(
    config: Config, execution: Execution, micro_batch: int, checkpointing: bool, length: int
) -> Iterator[Measured]:
    batch = config.train.effective_batch
    as_planned = replace(execution, micro_batch=micro_batch, checkpoint_activations=checkpointing)
    micros = _MICROS if micro_batch < batch else 1
    tokens = micro_batch * length
    blank = Measured(micro_batch, checkpointing, length, batch, 0, 0, tokens=tokens, probe=True)
    on_gpu = execution.device.startswith("cuda")
    try:
        peak = probe(config, as_planned, length, micros=micros, updates=STEPS // micros)
        yield replace(
            blank,
            allocated=peak.allocated,
            reserved=peak.reserved,
            seconds=peak.seconds,
        )
    except Exception as error:
        print(f"A probe before the trial failed: {in_short(error)}", file=sys.stderr)
        if on_gpu and (short := shortage(error)) is not None:
            yield replace(blank, allocated=short.needed, reserved=short.reserved, at_least=True)
    finally:
        with contextlib.suppress(Exception):  # a poisoned context answers nothing any more
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
