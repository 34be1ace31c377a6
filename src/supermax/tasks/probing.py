"""Probes of a new encoder: a few training steps before its first trial, in the trial's process.

Later plans use the measured memory and time.

trial.plan["probes"] ──run_probes()──▶ Measured ──▶ MeasurementLog
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import torch

from supermax._util.text import in_short
from supermax.engine.trial.oom import oom_details
from supermax.memory.measurements import Measured
from supermax.memory.probes import STEPS
from supermax.tasks.trial_plan import ProbePlan
from supermax.training.config import Config
from supermax.training.memory_probe import probe_memory
from supermax.training.steps.execution import Execution

_MICRO_STEPS = 2
"""Micro-steps of an update with gradient accumulation."""


def run_probes(
    config: Config, execution: Execution, probes: Sequence[ProbePlan]
) -> list[Measured]:
    """Run the probes of a plan and return their measurements.

    A probe that fails does not fail the trial, which reports its own errors.
    """
    return [measured for each in probes for measured in _run_probe(config, execution, **each)]


def _run_probe(
    config: Config, execution: Execution, micro_batch: int, checkpointing: bool, length: int
) -> Iterator[Measured]:
    batch = config.train.effective_batch
    split = replace(execution, micro_batch=micro_batch, checkpoint_activations=checkpointing)
    micro_steps = _MICRO_STEPS if micro_batch < batch else 1
    tokens = micro_batch * length
    blank = Measured(micro_batch, checkpointing, length, batch, 0, 0, tokens=tokens, probe=True)
    on_gpu = execution.device.startswith("cuda")
    try:
        peak = probe_memory(
            config, split, length, micros=micro_steps, updates=STEPS // micro_steps
        )
        yield replace(blank, **asdict(peak))
    except Exception as error:
        print(f"A probe before the trial failed: {in_short(error)}", file=sys.stderr)
        if on_gpu and (oom := oom_details(error)) is not None:
            yield replace(blank, allocated=oom.needed, reserved=oom.reserved, at_least=True)
    finally:
        with contextlib.suppress(Exception):  # after a CUDA error every call fails
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
