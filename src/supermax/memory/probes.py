"""Short probes before a trial whose encoder has not been measured on this device.

Plan, Known ──probes()──▶ splits to measure, within the memory that is reserved for the trial
"""

from __future__ import annotations

from collections.abc import Iterator

from supermax.memory.estimate import Split, need
from supermax.memory.measurements import Known
from supermax.memory.planner import Plan, splits
from supermax.memory.speed import micro_seconds

STEPS = 6
"""Micro-steps of a probe. The first ones warm up."""
MAX_SECONDS = 15.0
"""Expected time, at most, of all probes of an encoder."""


def probes(plan: Plan, known: Known) -> list[Split]:
    """Return the splits to measure before the trial.

    These are the planned split, if nothing was measured of its encoder yet, and, where the batch
    is split, the largest micro-batch with activation checkpointing switched the other way, which
    may be faster, unless that was measured. No probe needs more memory than the plan. There are no
    probes on a CPU: a process does not return memory as a GPU's allocator does, so that the
    probe's would count against the trial."""
    found: list[Split] = []
    if plan.spec.device == "cpu":
        return []
    left = MAX_SECONDS
    for split in _candidates(plan, known):
        seconds = STEPS * micro_seconds(plan.spec, split)
        if seconds <= left:
            found.append(split)
            left -= seconds
    return found


def _candidates(plan: Plan, known: Known) -> Iterator[Split]:
    planned = plan.split
    if not known.measurements:
        yield planned
    checkpointing = not planned.checkpointing
    if plan.whole or any(speed.checkpointing == checkpointing for speed in known.speeds):
        return
    for other in splits(plan.spec):
        total = need(plan.spec, other, known.correction).total
        if other.checkpointing == checkpointing and total <= plan.need.total:
            yield other
            return
