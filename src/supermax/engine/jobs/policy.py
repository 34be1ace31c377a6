"""Decide what follows a fault, given the earlier faults of the trial. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from supermax._util.text import ended
from supermax.engine.storage.run_folder import LedgerEntry
from supermax.engine.trial.faults import Culprit, Fault, Kind

UNCOUNTED_FAULTS_FAIL = 20  # of one trial: kills from outside and lost coordinators
MOST_REPLANS = 30  # of one trial
REFUSALS_HALT = 20  # trials, while none has run or ever succeeded
SAME_FAILURE_HALTS = 3  # trials, while nothing has ever succeeded
_UNCOUNTED = {
    Kind.KILLED,
    Kind.COORDINATOR_LOST,
    Kind.NODE_LOST,
    Kind.GPU_LOST,
    Kind.NO_CHECKPOINT,
}
"""Faults whose retries do not count towards `retries`."""
_PRUNE_AT_ONCE = {Kind.TIMEOUT, Kind.DIVERGED, Kind.INFEASIBLE}
_FAIL_AT_ONCE = {Kind.EXCEPTION, Kind.UNSENDABLE, Kind.WRONG_ARITY}
_MEMORY = {Kind.DEVICE_OOM, Kind.HOST_OOM}
_CUDA = {Kind.DEVICE_ASSERT, Kind.CUDA_ERROR}
_FAIL_AFTER_TWO = {Kind.SIGNAL, Kind.EXIT, *_CUDA}  # failed after two fresh cells
_BACK_OFF = 0.5
_LONGEST_BACK_OFF = 60.0
_FREE_BACK_OFF = 0.05
_LONGEST_FREE_BACK_OFF = 1.0


@dataclass(frozen=True)
class Retry:
    """Retry in a fresh cell."""

    delay: float
    """Seconds until the next attempt may start."""
    blocking_launches: bool = False
    """The next attempt runs with CUDA_LAUNCH_BLOCKING=1, so that a CUDA error surfaces at the
    line that caused it."""
    elsewhere: bool = False
    """On another machine, where the faults so far do not count."""


@dataclass(frozen=True)
class Prune:
    """Prune the trial, and report it to the sampler as a violated constraint; 1.0: wholly
    infeasible."""

    constraint: str
    value: float = 1.0
    why: str = ""
    """Reason beyond the fault's own message."""


@dataclass(frozen=True)
class Replan:
    """Retry in a fresh cell, with smaller micro-batches or more memory."""


@dataclass(frozen=True)
class Fail:
    """Finish the trial as FAIL."""

    culprit: Culprit
    """Party at fault, which may differ from that of the last fault."""


@dataclass(frozen=True)
class Offer:
    """Offer the trial to the other runs on the study, which may be on better machines."""


Decision = Retry | Replan | Prune | Fail | Offer


def decide(fault: Fault, before: Sequence[Fault], retries: int, planned: bool = False) -> Decision:
    """Decide on `fault`, given the faults of the trial's earlier attempts. `planned`: its
    memory was planned, so it can be planned again."""
    if fault.kind in _PRUNE_AT_ONCE:
        return Prune(constraint(fault.kind), fault.violation)
    if fault.kind in _FAIL_AT_ONCE or (fault.kind is Kind.EXIT and fault.culprit is Culprit.CODE):
        return Fail(fault.culprit)
    if fault.kind in _UNCOUNTED:
        return _retry_uncounted(before)
    if planned and (fault.kind in _MEMORY or _fragmented_in_fresh_cell(fault)):
        return Replan()
    charged = [earlier for earlier in before if earlier.kind not in _UNCOUNTED]
    if fault.kind in _FAIL_AFTER_TWO and _seen_on_fresh_cells(fault, charged) >= 2:
        return Fail(Culprit.CONFIGURATION_OR_CODE)
    if len(charged) >= retries:
        return Prune(constraint(fault.kind)) if fault.kind in _MEMORY else Fail(fault.culprit)
    delay = min(_BACK_OFF * 2 ** len(charged), _LONGEST_BACK_OFF)
    return Retry(delay, blocking_launches=fault.kind in _CUDA)


def _retry_uncounted(before: Sequence[Fault]) -> Decision:
    earlier = sum(fault.kind in _UNCOUNTED for fault in before)
    if earlier + 1 >= UNCOUNTED_FAULTS_FAIL:
        return Fail(Culprit.OUTSIDE)
    return Retry(min(_FREE_BACK_OFF * 2**earlier, _LONGEST_FREE_BACK_OFF) if earlier else 0.0)


def _fragmented_in_fresh_cell(fault: Fault) -> bool:
    """Return whether memory was fragmented in a fresh cell: then the trial needs too much."""
    return fault.kind is Kind.FRAGMENTED and fault.fresh_cell


def _seen_on_fresh_cells(fault: Fault, charged: Sequence[Fault]) -> int:
    same = [earlier for earlier in charged if _same(earlier, fault) and earlier.fresh_cell]
    return len(same) + fault.fresh_cell


def _same(one: Fault, other: Fault) -> bool:
    """Compare faults. CUDA errors surface at another line once launches block, so only their kind
    is compared."""
    return one.kind is other.kind and (one.kind in _CUDA or one.signature == other.signature)


def may_be_of_machine(fault: Fault) -> bool:
    """Return whether another machine might not have the fault that a trial fails with. What the
    objective returned does not depend on the machine."""
    return fault.kind not in (Kind.UNSENDABLE, Kind.WRONG_ARITY)


def constraint(kind: Kind) -> str:
    return f"supermax:{kind.name.lower()}"


def should_halt(signatures: Sequence[str], ever_succeeded: bool) -> bool:
    """Return True when the first trials all failed alike (one exception from one line, a wrong
    number of values) and nothing else has ever come of this study: going on would only fail
    thousands more. Once anything has succeeded, no trial's failure ends the run."""
    return (
        not ever_succeeded and len(signatures) >= SAME_FAILURE_HALTS and len(set(signatures)) == 1
    )


def apply_decision(fault: Fault, decision: Decision) -> Fault:
    """Return the fault with the culprit or the reason that the decision added."""
    match decision:
        case Fail(culprit):
            return replace(fault, culprit=culprit)
        case Prune(why=why) if why:
            return replace(fault, message=f"{ended(fault.message.rstrip('.'))} {why}")
        case _:
            return fault


def ledger_fields(decision: Decision) -> LedgerEntry:
    """Return the fields of the ledger from which a later run continues."""
    match decision:
        case Retry(_, blocking):
            return {"again": True, "blocking": blocking}
        case Replan():
            return {"again": True, "replanned": True}
        case Offer():
            return {"again": True, "offered": True}
        case _:
            return {"again": False}


def describe_decision(decision: Decision, *, ran: bool) -> str:
    """Return a decision as text for people. `ran`: the trial has had a cell."""
    match decision:
        case Retry(elsewhere=True):
            return "retry on another machine"
        case Retry(delay, blocking):
            return f"retry in {delay:.1f} s" + (" with blocking launches" if blocking else "")
        case Replan():
            return "tried again with another memory plan"
        case Prune() if not ran:
            return "reported to the sampler as infeasible"
        case Prune(name):
            return f"pruned, constraint {name}"
        case Offer():
            return "offered to the other runs"
        case Fail():
            return "failed"
