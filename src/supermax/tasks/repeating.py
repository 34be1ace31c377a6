"""Memory plan of a trial that is trained again (refit, replay), on data that may be larger.

the trial's plan (ledger), planner ──Repetition──▶ Execution; a smaller one when memory runs out
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from supermax.engine.jobs.policy import MOST_REPLANS
from supermax.engine.trial.faults import out_of_memory
from supermax.errors import EnvironmentFault
from supermax.memory.estimate import Split, need
from supermax.memory.planner import Failed, NoPlan, Plan
from supermax.tasks.provisioning import MemoryPlanner
from supermax.tasks.trial_plan import failed_of, with_split
from supermax.training.config import Config
from supermax.training.steps.execution import Execution


@dataclass
class Repetition:
    """Plans of one trial: its own if that fits the data, else a new one.

    The effective batch is the same in all of them.
    """

    planner: MemoryPlanner | None
    """Planner for the data that is trained on now; None: memory is unknown, and the trial's plan
    is kept."""
    config: Config
    before: Mapping[str, object] | None
    """Execution of the trial's last attempt, from its ledger."""
    tell: Callable[[str], None] = print
    _failed: list[Failed] = field(default_factory=list)

    def first(self, execution: Execution) -> Execution:
        """Return the execution to start with. Raises EnvironmentFault if no plan fits."""
        own = failed_of(self.before or {})
        if self.planner is None:
            return execution if own is None else with_split(execution, own.split)
        found = self._plan(self.planner, own.split if own is not None else None)
        if isinstance(found, NoPlan):
            raise EnvironmentFault(f"{found} Free memory, or use a device that has more.")
        return with_split(execution, found.split)

    def smaller(self, error: Exception, execution: Execution) -> Execution | None:
        """Return the next execution after one that ran out of memory.

        None: the error is another one, or no smaller execution is left.
        """
        if self.planner is None or not out_of_memory(error) or len(self._failed) >= MOST_REPLANS:
            return None
        self._failed.append(Failed(split_of(execution, self.config), self._budget(self.planner)))
        found = self._plan(self.planner, None)
        if isinstance(found, NoPlan):
            return None
        self.tell(f"Memory ran out. Training resumes from its last checkpoint with {found}.")
        return with_split(execution, found.split)

    def _plan(self, planner: MemoryPlanner, own: Split | None) -> Plan | NoPlan:
        spec, budget = planner.spec(self.config), self._budget(planner)
        correction = planner.book.known(spec).correction
        if own is not None and (needed := need(spec, own, correction)).total <= budget:
            return Plan(spec, own, needed, seconds=0.0)
        return planner.plan_within(budget, spec, self._failed)

    def _budget(self, planner: MemoryPlanner) -> int:
        """Return the bytes that other processes leave free: a refit does not wait for more.

        Memory that a failed attempt still holds on the GPU counts as free.
        """
        own = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        return planner.budget.available(None, [os.getpid()], own)


def split_of(execution: Execution, config: Config) -> Split:
    """Return the split that an execution trains with."""
    return Split(
        execution.micro_batch or config.train.effective_batch,
        execution.checkpoint_activations,
        execution.evaluated,
        execution.best_on_host,
    )
