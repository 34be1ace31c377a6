"""Which few steps to try before a trial, since too little is known of its encoder here.

Plan, Known ──probes()──▶ splits to try within the memory that is kept for the trial anyway
"""

from __future__ import annotations

from collections.abc import Iterator

from supermax.memory.estimate import Split, need
from supermax.memory.learning import Known
from supermax.memory.planner import Plan, splits
from supermax.memory.speed import micro_seconds

STEPS = 6
"""Micro-steps of a probe: the first ones are slower than the rest."""
LONGEST = 15.0
"""Seconds that all probes of an encoder may be expected to take."""


def probes(plan: Plan, known: Known) -> list[Split]:
    """The plan itself, where nothing is known of its encoder yet. Where the batch does not fit as
    it is, also the largest micro-batch with the other way to treat activations, which might be
    faster, unless that way is known. None needs more than the plan, and together they are short.
    None on a CPU: a process does not give memory back as a GPU's allocator does, and what a probe
    leaves behind would count against the trial."""
    found: list[Split] = []
    if plan.spec.device == "cpu":
        return []
    left = LONGEST
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
    again = not planned.checkpointing
    if plan.whole or any(pace.checkpointing == again for pace in known.paces):
        return
    for other in splits(plan.spec):
        total = need(plan.spec, other, known.correction).total
        if other.checkpointing == again and total <= plan.need.total:
            yield other
            return
