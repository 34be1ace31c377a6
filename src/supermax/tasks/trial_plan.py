"""Memory plan of a trial as JSON, for the trial's process (`trial.plan`) and for the ledger.

Plan ──trial_plan()──▶ TrialPlan ──apply_plan()──▶ Execution
                           └──ledger──failed_of()──▶ Failed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NotRequired, TypedDict

from supermax.memory.estimate import Split
from supermax.memory.planner import Failed, Plan
from supermax.training.steps.execution import Execution


class ProbePlan(TypedDict):
    """Split to measure before the trial, and the length of its sequences."""

    micro_batch: int
    checkpointing: bool
    length: int


class TrialPlan(TypedDict):
    """Execution plan of a trial: a Split, its memory, and probes."""

    micro_batch: int
    checkpoint_activations: bool
    evaluated: int
    best_on_host: bool
    memory: int
    """Bytes that the process may use."""
    probes: NotRequired[list[ProbePlan]]


def trial_plan(found: Plan) -> TrialPlan:
    """Return a plan as JSON."""
    return {
        "micro_batch": found.split.micro_batch,
        "checkpoint_activations": found.split.checkpointing,
        "evaluated": found.split.evaluated,
        "best_on_host": found.split.best_on_host,
        "memory": found.need.reserved,
    }


def apply_plan(execution: Execution, plan: TrialPlan) -> Execution:
    """Return the execution with the plan of a trial."""
    split = Split(
        plan["micro_batch"],
        plan["checkpoint_activations"],
        plan["evaluated"],
        plan["best_on_host"],
    )
    return replace(with_split(execution, split), memory=plan["memory"])


def with_split(execution: Execution, split: Split) -> Execution:
    """Return the execution with the split of a plan."""
    return replace(
        execution,
        micro_batch=split.micro_batch,
        checkpoint_activations=split.checkpointing,
        evaluated=split.evaluated,
        best_on_host=split.best_on_host,
    )


def failed_of(plan: Mapping[str, object]) -> Failed | None:
    """Read a plan of the ledger; None if another planner or version wrote it."""
    match plan:
        case {
            "micro_batch": int(micro_batch),
            "checkpoint_activations": bool(checkpointing),
            "evaluated": int(evaluated),
            "memory": int(memory),
        }:
            on_host = plan.get("best_on_host") is True
            return Failed(Split(micro_batch, checkpointing, evaluated, on_host), memory)
    return None
