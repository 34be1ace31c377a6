"""Disk space of a run: training states of parallel trials, and kept weights.

Spec ──footprint()──▶ Footprint;  footprints, free space ──allowance()──▶ Allowance, or None
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from supermax.memory.estimate import CONTEXT, STATE
from supermax.memory.facts import Spec


@dataclass(frozen=True)
class Footprint:
    """Device memory and disk space of one trial, in bytes."""

    memory: int
    """Least device memory that the trial needs, however its batch is split."""
    states: int
    """Most disk space while the trial runs: its last state, and the next one that replaces it."""
    weights: int
    """Disk space of its weights, if they are kept."""


def footprint(spec: Spec) -> Footprint:
    """Return the footprint of a trial. A training state holds the weights, the best epoch's
    weights and the optimizer's state; with an adapter, without the frozen weights."""
    weights, optimizer = 4 * spec.stored, int(STATE[spec.optimizer] * spec.trained)
    context = CONTEXT["cpu" if spec.device == "cpu" else "cuda"]
    memory = 4 * (spec.parameters + spec.adapter) + 4 * spec.trained + optimizer + context
    return Footprint(memory, 2 * (2 * weights + optimizer), weights)


@dataclass(frozen=True)
class Demand:
    """Disk space that a run requests."""

    trials: Sequence[Footprint]
    """Footprint of each kind of trial in the space."""
    workers: int
    """Largest number of parallel trials."""
    memory: int | None
    """Device memory of all devices together, in bytes; None: unknown."""
    top: int
    """Number of best trials whose weights are kept."""
    keep: int | None = None
    """Bytes that kept weights may take; None: no limit but `top`."""
    paused: int = 0
    """Least number of paused trials whose checkpoints are kept on this disk."""
    apart: bool = False
    """True: training states are on another disk."""

    @property
    def largest(self) -> int:
        """Bytes of the weights of the largest trial."""
        return max(trial.weights for trial in self.trials)

    @property
    def weights(self) -> int:
        """Most bytes of kept weights."""
        whole = self.top * self.largest
        return whole if self.keep is None else min(whole, self.keep)

    @property
    def states(self) -> int:
        """Most bytes of training states, in any mix of trials that memory and workers allow, on
        this disk.

        A mix is a knapsack with two constraints. Whatever price is put on a byte of memory, no
        mix is worth more than all memory at that price and, for each worker, the most that a
        trial's states exceed the price of its memory (weak duality); the lowest such bound is at
        a price where two trials are worth the same.
        """
        if self.apart:
            return 0
        if self.memory is None:
            return self.workers * max(trial.states for trial in self.trials)
        items = {(trial.states, trial.memory) for trial in self.trials} | {(0, 0)}
        prices = {(a - b) / (m - n) for (a, m), (b, n) in combinations(items, 2) if m != n}
        bounds = [
            price * self.memory + self.workers * max(s - price * m for s, m in items)
            for price in {0.0, *prices}
            if price >= 0
        ]
        return math.ceil(min(bounds))

    @property
    def pauses(self) -> int:
        """Most bytes of the checkpoints of `paused` trials: a state each, without the next one."""
        return self.paused * max(trial.states for trial in self.trials) // 2

    @property
    def total(self) -> int:
        return self.states + self.weights + self.pauses


@dataclass(frozen=True)
class Allowance:
    """Parallel trials and kept weights for which the disk has space."""

    workers: int
    keep: int | None
    """Bytes that kept weights may take; None: no limit."""
    total: int
    """Most bytes on disk."""
    paused: int = field(default=0, compare=False)
    """Bytes that checkpoints of paused trials may take: half of what the rest of the run leaves,
    and those of the least number in any case."""


def allowance(demand: Demand, free: int) -> Allowance | None:
    """Return as many workers as fit into `free` bytes of disk; with one worker, as many kept
    weights as fit, but at least those of one trial. None where even that does not fit."""
    for workers in range(demand.workers, 0, -1):
        less = replace(demand, workers=workers)
        if less.total <= free:
            paused = demand.pauses + (free - less.total) // 2
            return Allowance(workers, demand.keep, less.total, paused)
    keep = free - replace(demand, workers=1).states - demand.pauses
    return Allowance(1, keep, free, demand.pauses) if keep >= demand.largest else None
