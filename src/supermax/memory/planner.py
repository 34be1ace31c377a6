"""Split of an effective batch into micro-batches that fit a device. The batch size never changes.

Spec, budget ──plan()──▶ Plan, or NoPlan with the smallest sufficient budget
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from supermax._util.text import counted, size_text
from supermax.memory.estimate import EVALUATED, PLAIN, Correction, Need, Split, need
from supermax.memory.facts import Spec
from supermax.memory.speed import StepSpeed, batch_seconds

_RETRY_FACTOR = 1.25
"""Factor above which memory is clearly more than that of a split that failed."""
_CLEARLY_SMALLER = 0.85
"""Share of the need of a failed split below which another one needs clearly less."""
_GROWTH = 4
"""Factor by which memory grows where no split is clearly smaller than those that failed."""
_HALF = 0.5
"""Share of the need of a failed split below which another one is tried with as much memory."""


@dataclass(frozen=True)
class Plan:
    """Execution of a trial, and the memory to reserve for it."""

    spec: Spec
    split: Split
    need: Need
    seconds: float
    """Expected time of an effective batch."""
    why: str = ""
    """Reason why the batch is split, for messages; empty where it is taken whole."""

    @property
    def micro_batches(self) -> int:
        return -(-self.spec.effective_batch // self.split.micro_batch)

    @property
    def whole(self) -> bool:
        """True if the batch is one micro-batch, without activation checkpointing or offloading."""
        split = self.split
        return self.micro_batches == 1 and not (split.checkpointing or split.best_on_host)

    def __str__(self) -> str:
        text = f"{self.spec.effective_batch} sequences at once"
        if self.micro_batches > 1:
            size = self.split.micro_batch
            full, rest = divmod(self.spec.effective_batch, size)
            text = f"{counted(full, 'micro-batch', 'micro-batches')} of {size}"
            text += f" and one of {rest}" if rest else ""
        text += ", activation checkpointing" if self.split.checkpointing else ""
        return text + (", best weights in host memory" if self.split.best_on_host else "")


@dataclass(frozen=True)
class Failed:
    """Split that ran out of memory."""

    split: Split
    memory: int
    """Bytes that it was allowed to use."""


@dataclass(frozen=True)
class NoPlan:
    """Result where nothing fits, not even a micro-batch of 1 with activation checkpointing."""

    spec: Spec
    smallest: int
    """Bytes that would be enough."""
    budget: int

    @property
    def over(self) -> float:
        """Share of the budget by which the need exceeds it."""
        return self.smallest / max(1, self.budget) - 1

    def __str__(self) -> str:
        names = " and ".join(dict.fromkeys(encoder.name for encoder in self.spec.encoders))
        needed, available = size_text(self.smallest), size_text(self.budget)
        return (
            f"{names} at {self.spec.length} tokens needs "
            f"{needed if needed != available else 'more'} even with a micro-batch of 1 and "
            f"activation checkpointing; {available} are available."
        )


def plan(
    spec: Spec,
    budget: int,
    *,
    correction: Correction = PLAIN,
    measured: Sequence[StepSpeed] = (),
    failed: Sequence[Failed] = (),
) -> Plan | NoPlan:
    """Return the whole batch where it fits into `budget` bytes of the device, else the fastest
    plan that fits.

    `failed` are splits that ran out of memory: a plan must need clearly less, else it gets more
    memory than it is estimated to need. `measured` are step times of the same encoder."""
    candidates = [_plan_of(spec, split, correction, measured) for split in splits(spec)]
    if spec.device != "cpu":
        tightest = min(candidates, key=lambda plan: plan.need.total).split
        offloaded = replace(tightest, best_on_host=True)
        candidates.append(_plan_of(spec, offloaded, correction, measured))
    candidates = _no_slower_than_smaller(candidates)
    found = [p for p in candidates if p.need.total <= budget and _promising(p, failed)]
    found = found or _with_more_memory(candidates, failed, budget)
    if found:
        best = min(found, key=_preference)
        return replace(best, why=_why(best, candidates[0], budget))
    smallest = min(plan.need.total for plan in candidates)
    if failed:  # the need exceeds its estimate
        smallest = max(smallest, budget + 1, int(_RETRY_FACTOR * max(f.memory for f in failed)))
    return NoPlan(spec, smallest, budget)


def _with_more_memory(
    candidates: Sequence[Plan], failed: Sequence[Failed], budget: int
) -> list[Plan]:
    """Return the promising plans among those with more memory than their estimate, at last the
    tightest one with the whole budget. Once a split has failed with the whole budget, the others
    get all of it at once."""
    found = []
    for plan in candidates:
        close = [f.memory for f in failed if not _needs_less(plan, f, _HALF)]
        memory = _GROWTH * max([plan.need.reserved, *close])
        whole = budget - plan.need.context
        exhausted = any(f.memory >= whole for f in failed)
        found += _given(plan, whole if exhausted else min(memory, whole))
    promising = [plan for plan in found if _promising(plan, failed, _HALF)]
    if promising:
        return promising
    tightest = min(candidates, key=lambda plan: plan.need.total)
    tried = max((f.memory for f in failed if not _needs_less(tightest, f, 1.0)), default=0)
    whole = budget - tightest.need.context
    return _given(tightest, whole) if whole >= _RETRY_FACTOR * tried else []


def _given(plan: Plan, memory: int) -> list[Plan]:
    """Return the plan with that memory to reserve; none if it is less than the estimate."""
    extra = memory - plan.need.reserved
    roomy = replace(plan.need, slack=plan.need.slack + extra)
    return [replace(plan, need=roomy)] if extra >= 0 else []


def _no_slower_than_smaller(largest_first: Sequence[Plan]) -> list[Plan]:
    """Cap the time of larger micro-batches at that of smaller ones, so that a size that was
    measured on a busy machine does not lose to a smaller one. With and without activation
    checkpointing are separate."""
    lowest: dict[bool, float] = {}
    found = []
    for plan in reversed(largest_first):
        key = plan.split.checkpointing
        lowest[key] = min(plan.seconds, lowest.get(key, plan.seconds))
        found.append(replace(plan, seconds=lowest[key]))
    return found[::-1]


def _why(chosen: Plan, whole: Plan, budget: int) -> str:
    """Return the reason why the batch is split; "" where it is not."""
    if chosen.whole:
        return ""
    if whole.need.total > budget:
        needed, available = size_text(whole.need.total), size_text(budget)
        more = needed if needed != available else "a little more"
        return f"the whole batch would need {more}, and {available} are available"
    return "an earlier attempt ran out of memory"


def _promising(plan: Plan, failed: Iterable[Failed], share: float = _CLEARLY_SMALLER) -> bool:
    """Return True if, compared with every split that failed, the plan needs less than `share`, or
    gets clearly more memory."""
    return all(
        plan.need.reserved >= _RETRY_FACTOR * f.memory or _needs_less(plan, f, share)
        for f in failed
    )


def _needs_less(plan: Plan, failed: Failed, share: float) -> bool:
    """Return True if the plan needs less than `share` of a split that failed, by the formula
    alone, which later measurements do not change."""
    spec = plan.spec
    return need(spec, plan.split).total < share * need(spec, failed.split).total


def _preference(plan: Plan) -> tuple[bool, float, bool, int, bool]:
    """Return a sort key: the whole batch first, then the fastest; among equals without activation
    checkpointing, then the largest micro-batch."""
    split = plan.split
    seconds = round(plan.seconds, 6)
    return (not plan.whole, seconds, split.checkpointing, -split.micro_batch, split.best_on_host)


def splits(spec: Spec) -> Iterable[Split]:
    """Yield every split of the effective batch into micro-batches of equal size (the last one may
    be smaller), with and without activation checkpointing."""
    for checkpointing in (False, True):
        for size in _sizes(spec.effective_batch):
            yield split_into(spec, size, checkpointing)


def split_into(spec: Spec, size: int, checkpointing: bool = False) -> Split:
    """Return the split into micro-batches of that size, with evaluation batches that fit beside
    them."""
    return Split(size, checkpointing, min(EVALUATED, max(4 * size * spec.length, 2048)))


def smallest_budget(spec: Spec) -> int:
    """Return the bytes of the smallest device that fits the trial in some split. That is not
    always a micro-batch of 1: a whole batch has no accumulated gradients beside its
    activations."""
    extremes = itertools.product((1, spec.effective_batch), (False, True))
    tightest = min((split_into(spec, *e) for e in extremes), key=lambda s: need(spec, s).total)
    return need(spec, replace(tightest, best_on_host=spec.device != "cpu")).total


def _sizes(batch: int) -> Iterable[int]:
    """Yield every size that some number of equal parts has, the largest first: about 2√batch."""
    parts = 1
    while size := (batch - 1) // parts:
        yield size + 1
        parts = (batch - 1) // size + 1
    yield 1


def _plan_of(
    spec: Spec, split: Split, correction: Correction, measured: Sequence[StepSpeed]
) -> Plan:
    seconds = batch_seconds(spec, split, measured)
    return Plan(spec, split, need(spec, split, correction), seconds)
