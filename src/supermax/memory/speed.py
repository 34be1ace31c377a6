"""Time of a plan, from measured step times or, before there are any, from rough constants.

A micro-step is either launch-bound (Python launches one kernel after the other) or compute-bound,
whichever takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supermax.memory.estimate import Split
from supermax.memory.facts import Spec

_LAUNCH = {"cuda": 3.5e-3, "cpu": 2e-4}  # seconds to launch the kernels of a layer
_THROUGHPUT = {"cuda": 2.5e14, "cpu": 4e10}  # floating-point operations a second
_GRAPH_LAUNCH = 0.1  # launch time of a captured CUDA graph, relative to eager
_CHECKPOINT_LAUNCH = 1.8  # activation checkpointing launches the forward pass twice
_CHECKPOINT_COMPUTE = 4 / 3  # and adds one forward pass to a forward and a backward
_NEAR = 0.1  # share of a size within which measurements count as equally near


@dataclass(frozen=True)
class StepSpeed:
    """Measured time of a micro-step."""

    tokens: int
    """Tokens of the micro-batch."""
    checkpointing: bool
    seconds: float


def micro_seconds(spec: Spec, split: Split, measured: Sequence[StepSpeed] = ()) -> float:
    """Return the seconds of one micro-step.

    Measurements scale the rough estimate. Among those nearest in size the fastest counts, since
    interference of other processes only ever slows a step."""
    tokens = split.micro_batch * spec.length
    rough = _rough(spec, tokens, split.checkpointing)
    same = [speed for speed in measured if speed.checkpointing == split.checkpointing]
    if not same:
        factors = [s.seconds / _rough(spec, s.tokens, s.checkpointing) for s in measured]
        return rough * (sorted(factors)[len(factors) // 2] if factors else 1.0)
    nearest = min(abs(speed.tokens - tokens) for speed in same)
    return rough * min(
        speed.seconds / _rough(spec, speed.tokens, speed.checkpointing)
        for speed in same
        if abs(speed.tokens - tokens) <= nearest + _NEAR * speed.tokens
    )


def batch_seconds(spec: Spec, split: Split, measured: Sequence[StepSpeed] = ()) -> float:
    """Return the seconds of all micro-steps of an effective batch."""
    micro_steps = -(-spec.effective_batch // split.micro_batch)
    return micro_steps * micro_seconds(spec, split, measured)


def _rough(spec: Spec, tokens: int, checkpointing: bool) -> float:
    """Return the seconds of a micro-step that was not measured."""
    kind = "cpu" if spec.device == "cpu" else "cuda"
    layers = sum(encoder.layers for encoder in spec.encoders)
    launch = _LAUNCH[kind] * layers
    if checkpointing:
        launch *= _CHECKPOINT_LAUNCH
    elif spec.captured:
        launch *= _GRAPH_LAUNCH
    operations = 6 * sum(e.layers * e.matrices for e in spec.encoders) * tokens
    compute = operations / _THROUGHPUT[kind] * (_CHECKPOINT_COMPUTE if checkpointing else 1)
    return max(launch, compute)
