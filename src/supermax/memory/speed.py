"""How long a plan would take: from what was measured, and before that from rough figures.

A micro-step takes as long as it takes to ask for it (Python, one kernel after the other) or as
long as the device computes, whichever is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supermax.memory.estimate import Split
from supermax.memory.facts import Spec

_ASKING = {"cuda": 3.5e-3, "cpu": 2e-4}  # seconds a layer
_RATE = {"cuda": 2.5e14, "cpu": 4e10}  # operations a second
_RECORDED = 0.1  # of that, where steps are recorded
_AGAIN_ASKING = 1.8  # layers computed again are asked for again
_ALIKE = 0.1  # of a size, by which others are as near
_AGAIN = 4 / 3  # one more forward pass for each forward and backward


@dataclass(frozen=True)
class Pace:
    """Seconds that a micro-step of so many tokens was measured to take."""

    tokens: int
    checkpointing: bool
    seconds: float


def micro_seconds(spec: Spec, split: Split, measured: Sequence[Pace] = ()) -> float:
    """Of one micro-step. Measurements shift the rough figures: of those nearest in size the
    fastest counts, since what comes between only ever slows a step."""
    tokens = split.micro_batch * spec.length
    rough = _rough(spec, tokens, split.checkpointing)
    same = [pace for pace in measured if pace.checkpointing == split.checkpointing]
    if not same:
        factors = [p.seconds / _rough(spec, p.tokens, p.checkpointing) for p in measured]
        return rough * (sorted(factors)[len(factors) // 2] if factors else 1.0)
    near = min(abs(pace.tokens - tokens) for pace in same)
    return rough * min(
        pace.seconds / _rough(spec, pace.tokens, pace.checkpointing)
        for pace in same
        if abs(pace.tokens - tokens) <= near + _ALIKE * pace.tokens
    )


def batch_seconds(spec: Spec, split: Split, measured: Sequence[Pace] = ()) -> float:
    """Of all micro-steps of an effective batch."""
    times = -(-spec.effective_batch // split.micro_batch)
    return times * micro_seconds(spec, split, measured)


def _rough(spec: Spec, tokens: int, checkpointing: bool) -> float:
    kind = "cpu" if spec.device == "cpu" else "cuda"
    layers = sum(encoder.layers for encoder in spec.encoders)
    asking = _ASKING[kind] * layers
    if checkpointing:
        asking *= _AGAIN_ASKING
    elif spec.captured:
        asking *= _RECORDED
    work = 6 * sum(e.layers * e.matrices for e in spec.encoders) * tokens
    return max(asking, work / _RATE[kind] * (_AGAIN if checkpointing else 1))
