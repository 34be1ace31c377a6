"""Planner of a search with a Trainer: after each time a trial runs out of memory, a finer split.

The batch of a trial is known in its cell only, so the plan counts; the cell computes the split.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import Trial

from supermax.engine.jobs.provision import DeviceUsage, Provision

OOM_COUNT = "out_of_memory"
"""Key of the plan: number of attempts that ran out of memory."""
_IN_EVALUATION = "out-of-memory-in-evaluation"


class SplitPlanner:
    """Reserves nothing, since the memory that a Trainer's trial needs is not known."""

    def provide(self, trial: Trial, failed: Sequence[dict[str, object]]) -> Provision:
        return Provision(0, {OOM_COUNT: len(failed)})

    def room(self, occupied: DeviceUsage) -> int | None:
        return None


@dataclass(frozen=True)
class BatchSplit:
    """Numbers of parts into which batches are split."""

    training: int = 1
    evaluation: int = 1


def batch_split_of(plan: dict[str, object] | None, folder: Path) -> BatchSplit:
    """Return the split of an attempt: twice as fine after each time that memory ran out, in the
    phase in which it did."""
    ooms = int(str((plan or {}).get(OOM_COUNT, 0)))
    in_evaluation = min(ooms, _count(folder))
    return BatchSplit(2 ** (ooms - in_evaluation), 2**in_evaluation)


def note_evaluation_oom(folder: Path) -> None:
    """Note in a trial's checkpoint folder that memory ran out during an evaluation."""
    count = _count(folder) + 1
    with contextlib.suppress(OSError):
        (folder / _IN_EVALUATION).write_text(str(count))


def _count(folder: Path) -> int:
    try:
        return int((folder / _IN_EVALUATION).read_text())
    except (OSError, ValueError):
        return 0
