"""Disk space of a run: the states of trials that run at once, and the weights that are kept.

Spec ──footprint()──▶ Footprint;  footprints, free space ──allowance()──▶ Allowance, or None
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from supermax.memory.estimate import CONTEXT, STATE
from supermax.memory.facts import Spec


@dataclass(frozen=True)
class Footprint:
    """Bytes of one trial."""

    memory: int
    """Device memory that the trial needs at least, however it is split."""
    states: int
    """On disk while it runs, at most: the last state, and the next one that replaces it."""
    weights: int
    """On disk for as long as they are kept."""


def footprint(spec: Spec) -> Footprint:
    """A state holds the weights, the best epoch's weights and what the optimizer keeps."""
    weights, kept = 4 * spec.numbers, int(STATE[spec.optimizer] * spec.trained)
    context = CONTEXT["cpu" if spec.device == "cpu" else "cuda"]
    memory = weights + 4 * spec.trained + kept + context
    return Footprint(memory, 2 * (2 * weights + kept), weights)


@dataclass(frozen=True)
class Demand:
    """Disk space that a run asks for."""

    trials: Sequence[Footprint]
    """Footprint of each kind of trial in the space."""
    workers: int
    """Trials at a time, at most."""
    memory: int | None
    """Bytes of all devices together; None: unknown."""
    top: int
    """Trials whose weights are kept."""
    keep: int | None = None
    """Bytes that kept weights may take; None: no limit but `top`."""

    @property
    def largest(self) -> int:
        """Bytes of the weights of the largest trial."""
        return max(trial.weights for trial in self.trials)

    @property
    def weights(self) -> int:
        """Bytes of kept weights, at most."""
        whole = self.top * self.largest
        return whole if self.keep is None else min(whole, self.keep)

    @property
    def states(self) -> int:
        """Bytes of states, at most, in any mix of trials that memory and workers allow.

        A mix is a knapsack with two constraints. Whatever price is put on a byte of memory, no
        mix is worth more than all memory at that price and, for each worker, the most that a
        trial's states exceed the price of its memory (weak duality); the lowest such bound is at
        a price where two trials are worth the same.
        """
        if self.memory is None:
            return self.workers * max(trial.states for trial in self.trials)
        some = {(trial.states, trial.memory) for trial in self.trials} | {(0, 0)}
        prices = {(a - b) / (m - n) for (a, m), (b, n) in combinations(some, 2) if m != n}
        bounds = [
            price * self.memory + self.workers * max(s - price * m for s, m in some)
            for price in {0.0, *prices}
            if price >= 0
        ]
        return math.ceil(min(bounds))

    @property
    def total(self) -> int:
        return self.states + self.weights


@dataclass(frozen=True)
class Allowance:
    """Workers and kept weights that a run may have."""

    workers: int
    keep: int | None
    total: int
    """Bytes on disk, at most."""


def allowance(demand: Demand, free: int) -> Allowance | None:
    """As many workers as the disk has room for, then as many kept weights, and the best trial's
    at least. None: there is no room for one trial at a time."""
    for workers in range(demand.workers, 0, -1):
        less = replace(demand, workers=workers)
        if less.total <= free:
            return Allowance(workers, demand.keep, less.total)
    keep = free - replace(demand, workers=1).states
    return Allowance(1, keep, free) if keep >= demand.largest else None
