"""Which few steps to try before an encoder's first trial here, since nothing is known of it yet.

Plan ──probes()──▶ splits to try within the memory that is kept for the trial anyway
"""

from __future__ import annotations

from collections.abc import Iterator

from supermax.memory.estimate import Split, need
from supermax.memory.planner import Plan
from supermax.memory.speed import micro_seconds

STEPS = 6
"""Micro-steps of a probe: the first ones are slower than the rest."""
LONGEST = 15.0
"""Seconds that all probes of an encoder may be expected to take."""


def probes(plan: Plan) -> list[Split]:
    """The plan itself, then the other way to treat activations, with which this or a later trial
    might turn out faster. None of them needs more than the plan, and together they are short.
    None on a CPU: a process does not give memory back as a GPU's allocator does, and what a probe
    leaves behind would count against the trial."""
    found: list[Split] = []
    if plan.spec.device == "cpu":
        return []
    left = LONGEST
    for split in _candidates(plan.split):
        seconds = STEPS * micro_seconds(plan.spec, split)
        if need(plan.spec, split).total <= plan.need.total and seconds <= left:
            found.append(split)
            left -= seconds
    return found


def _candidates(planned: Split) -> Iterator[Split]:
    yield planned
    for size in dict.fromkeys((planned.micro_batch, max(1, planned.micro_batch // 2))):
        yield Split(size, not planned.checkpointing, planned.evaluated)
