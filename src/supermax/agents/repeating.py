"""The memory plan of a trial that is trained again, here and now, on data that may be larger.

the trial's plan (ledger), planner ──Repetition──▶ Execution; a smaller one when memory runs out
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from supermax.agents.provisioning import MemoryPlanner, failed_of
from supermax.engine.faults import out_of_memory
from supermax.engine.policy import MOST_REPLANS
from supermax.errors import EnvironmentFault
from supermax.memory.estimate import Split, need
from supermax.memory.planner import Failed, NoPlan, Plan, plan
from supermax.training.config import Config
from supermax.training.steps import Execution


@dataclass
class Repetition:
    """Plans of one trial: its own where that fits what is trained now, else a new one. The
    effective batch is the same in each."""

    planner: MemoryPlanner | None
    """Planner for what is trained now. None: memory cannot be seen; the trial's plan is kept."""
    config: Config
    before: dict[str, Any] | None
    """Execution of the trial's last attempt, as its ledger has it."""
    tell: Callable[[str], None] = print
    _failed: list[Failed] = field(default_factory=list)

    def first(self, execution: Execution) -> Execution:
        """Raises EnvironmentFault where the trial fits in no way."""
        own = failed_of(self.before or {})
        if self.planner is None:
            return execution if own is None else executed(execution, own.split)
        found = self._plan(self.planner, own.split if own is not None else None)
        if isinstance(found, NoPlan):
            raise EnvironmentFault(f"{found} Free memory, or use a device that has more.")
        return executed(execution, found.split)

    def smaller(self, error: Exception, execution: Execution) -> Execution | None:
        """The next execution after one that ran out of memory. None: the error is another, or
        nothing smaller is left."""
        if self.planner is None or not out_of_memory(error) or len(self._failed) >= MOST_REPLANS:
            return None
        self._failed.append(Failed(split_of(execution, self.config), self._budget(self.planner)))
        found = self._plan(self.planner, None)
        if isinstance(found, NoPlan):
            return None
        self.tell(f"Memory ran out. Training goes on from its last state with {found}.")
        return executed(execution, found.split)

    def _plan(self, planner: MemoryPlanner, own: Split | None) -> Plan | NoPlan:
        spec, budget = planner.spec(self.config), self._budget(planner)
        known = planner.book.known(spec)
        if own is not None and (needed := need(spec, own, known.correction)).total <= budget:
            return Plan(spec, own, needed, seconds=0.0)
        return plan(
            spec,
            budget,
            correction=known.correction,
            measured=known.paces,
            failed=self._failed,
        )

    def _budget(self, planner: MemoryPlanner) -> int:
        """Return the memory that other processes leave free: a refit does not wait for more. What
        an attempt that failed still holds of the GPU is this process's own."""
        own = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        return planner.budget.available(None, [os.getpid()], own)


def executed(execution: Execution, split: Split) -> Execution:
    return replace(
        execution,
        micro_batch=split.micro_batch,
        checkpoint_activations=split.checkpointing,
        evaluated=split.evaluated,
        best_on_host=split.best_on_host,
    )


def split_of(execution: Execution, config: Config) -> Split:
    return Split(
        execution.micro_batch or config.train.effective_batch,
        execution.checkpoint_activations,
        execution.evaluated,
        execution.best_on_host,
    )
