"""What fits: an effective batch split into micro-batches, never changed.

Spec, budget ──plan()──▶ Plan, or NoPlan with the smallest budget that would do
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from supermax.memory.estimate import EVALUATED, PLAIN, Correction, Need, Split, need
from supermax.memory.facts import Spec
from supermax.memory.speed import Pace, batch_seconds
from supermax.words import counted, size_text

_MORE = 1.25
"""How much more memory the same split must get, to be worth another attempt."""
_LESS = 0.85
"""The share of what failed that a smaller split should need, if there is one."""


@dataclass(frozen=True)
class Plan:
    """How a trial is executed, and what is kept free for it."""

    spec: Spec
    split: Split
    need: Need
    seconds: float
    """An effective batch is expected to take."""
    why: str = ""
    """It is not taken as it is, if so."""

    @property
    def micro_batches(self) -> int:
        return -(-self.spec.effective_batch // self.split.micro_batch)

    @property
    def whole(self) -> bool:
        """The effective batch is taken as it is."""
        split = self.split
        return self.micro_batches == 1 and not (split.checkpointing or split.best_on_host)

    def __str__(self) -> str:
        words = f"{self.spec.effective_batch} sequences at once"
        if self.micro_batches > 1:
            size = self.split.micro_batch
            full, rest = divmod(self.spec.effective_batch, size)
            words = f"{counted(full, 'micro-batch', 'micro-batches')} of {size}"
            words += f" and one of {rest}" if rest else ""
        words += ", activations computed again" if self.split.checkpointing else ""
        return words + (", the best epoch kept by the host" if self.split.best_on_host else "")


@dataclass(frozen=True)
class Failed:
    """A split that ran out of memory although it was given so many bytes."""

    split: Split
    memory: int


@dataclass(frozen=True)
class NoPlan:
    """Nothing fits, not even one sequence at a time with activations computed again."""

    spec: Spec
    smallest: int
    """Bytes that would do."""
    budget: int

    @property
    def over(self) -> float:
        """By which share of the budget it is too much."""
        return self.smallest / max(1, self.budget) - 1

    def __str__(self) -> str:
        names = " and ".join(dict.fromkeys(encoder.name for encoder in self.spec.encoders))
        return (
            f"{names} at {self.spec.length} tokens needs {size_text(self.smallest)} even one "
            f"sequence at a time with activations computed again; there are "
            f"{size_text(self.budget)}."
        )


def plan(
    spec: Spec,
    budget: int,
    *,
    correction: Correction = PLAIN,
    measured: Sequence[Pace] = (),
    failed: Sequence[Failed] = (),
) -> Plan | NoPlan:
    """The whole batch at once where it fits into `budget` bytes of the device, else the fastest
    plan that does. `failed`: what turned out not to do; a plan must need less, or be given clearly
    more memory."""
    tried = [_made(spec, split, correction, measured) for split in splits(spec)]
    if spec.device != "cpu":
        tightest = min(tried, key=lambda plan: plan.need.total).split
        tried.append(_made(spec, replace(tightest, best_on_host=True), correction, measured))
    tried = _no_slower_than_parts(tried)
    bounds = [(f.memory, need(spec, f.split).total) for f in failed]
    fitting = [p for p in tried if p.need.total <= budget and _better(p, bounds)]
    if fitting:
        clearly = [p for p in fitting if _better(p, bounds, _LESS)]
        smaller = min(fitting, key=lambda plan: plan.need.total)
        best = min(clearly, key=_preference) if clearly else smaller
        return replace(best, why=_why(best, tried[0], budget))
    smallest = min(plan.need.total for plan in tried)
    if failed:  # more than it was thought to need
        smallest = max(smallest, budget + 1, int(_MORE * max(f.memory for f in failed)))
    return NoPlan(spec, smallest, budget)


def _no_slower_than_parts(largest_first: Sequence[Plan]) -> list[Plan]:
    """What larger micro-batches take, no more than smaller ones one after the other: a size that
    was measured in a slow moment is no reason for a smaller one. With and without activations that
    are computed again, each by itself."""
    lowest: dict[bool, float] = {}
    found = []
    for plan in reversed(largest_first):
        again = plan.split.checkpointing
        lowest[again] = min(plan.seconds, lowest.get(again, plan.seconds))
        found.append(replace(plan, seconds=lowest[again]))
    return found[::-1]


def _why(chosen: Plan, whole: Plan, budget: int) -> str:
    """It is not the whole batch as it is; nothing where it is."""
    if chosen.whole:
        return ""
    if whole.need.total > budget:
        needed, there = size_text(whole.need.total), size_text(budget)
        more = needed if needed != there else "a little more"
        return f"as it is it would need {more}, and there are {there}"
    return "memory was too short before"


def _better(plan: Plan, failed: Sequence[tuple[int, int]], share: float = 1.0) -> bool:
    """Than all that failed, of which each had so much memory and was thought to need so much:
    less than this share of it."""
    scarce = [total for memory, total in failed if plan.need.reserved < _MORE * memory]
    return not scarce or need(plan.spec, plan.split).total < share * min(scarce)


def _preference(plan: Plan) -> tuple[bool, float, bool, int, bool]:
    """The whole batch, then the fastest; of equals the simplest, then the largest micro-batch."""
    split = plan.split
    seconds = round(plan.seconds, 6)
    return (not plan.whole, seconds, split.checkpointing, -split.micro_batch, split.best_on_host)


def splits(spec: Spec) -> Iterable[Split]:
    """Every way to take the effective batch in micro-batches of equal size, the last one smaller
    if need be."""
    for checkpointing in (False, True):
        for size in _sizes(spec.effective_batch):
            yield split_into(spec, size, checkpointing)


def split_into(spec: Spec, size: int, checkpointing: bool = False) -> Split:
    """Micro-batches of that size. Evaluation takes as little at a time as fits beside them."""
    return Split(size, checkpointing, min(EVALUATED, max(4 * size * spec.length, 2048)))


def least(spec: Spec) -> int:
    """Bytes of the smallest device that takes it in some way. One sequence at a time is not always
    that: a batch taken whole does not keep the sum of its gradients beside its activations."""
    ends = itertools.product((1, spec.effective_batch), (False, True))
    tightest = min((split_into(spec, *e) for e in ends), key=lambda s: need(spec, s).total)
    return need(spec, replace(tightest, best_on_host=spec.device != "cpu")).total


def _sizes(batch: int) -> Iterable[int]:
    """Every size that some number of equal parts has, the largest first: about 2√batch."""
    times = 1
    while size := (batch - 1) // times:
        yield size + 1
        times = (batch - 1) // size + 1
    yield 1


def _made(spec: Spec, split: Split, correction: Correction, measured: Sequence[Pace]) -> Plan:
    seconds = batch_seconds(spec, split, measured)
    return Plan(spec, split, need(spec, split, correction), seconds)
