"""Simulate a search on recorded curves: workers and a clock, for methods outside Supermax.

    Method.ask ──▶ free worker ──epoch──▶ Method.report ──▶ goes on, or the worker is free

An epoch takes one simulated second. A trial that is asked for again continues after its last
epoch: every method has checkpoints at no cost. Replays of Supermax itself are in replay.py.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tables import Params, Table


@dataclass(frozen=True)
class Epoch:
    """One epoch of a trial that was trained."""

    end: float
    """Simulated seconds."""
    trial: int
    loss: float


@dataclass
class Replay:
    """Result of a search: all epochs in the order in which they ended."""

    epochs: list[Epoch] = field(default_factory=list)
    trials: int = 0


class Method(Protocol):
    """Search method: decides which configurations are trained, and for how many epochs."""

    def ask(self) -> tuple[int, Params] | None:
        """Return the number and configuration of the trial to train next, a new one or one that
        has stopped; None: there is none before another report."""

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        """Take the loss after an epoch, counted from 1. Return whether the trial goes on; after
        the last epoch of the table it has ended in any case."""


@dataclass
class _Training:
    trial: int
    curve: np.ndarray
    done: int = 0


def simulate(table: Table, method: Method, *, budget: int, workers: int) -> Replay:
    """Search until `budget` epochs are spent, or until the method has nothing left to train."""
    result = Replay()
    trainings: dict[int, _Training] = {}
    due: list[tuple[float, int, _Training]] = []
    order = itertools.count()
    now = 0.0
    while len(result.epochs) < budget:
        while len(due) < workers and (asked := method.ask()) is not None:
            number, params = asked
            if number not in trainings:
                trainings[number] = _Training(number, table.curve(params))
            training = trainings[number]
            if training.done >= table.epochs or any(t is training for _, _, t in due):
                raise ValueError(f"Trial {number} runs or has all its epochs.")
            heapq.heappush(due, (now + 1.0, next(order), training))
        if not due:
            break
        now, _, training = heapq.heappop(due)
        loss = float(training.curve[training.done])
        training.done += 1
        result.epochs.append(Epoch(now, training.trial, loss))
        goes_on = method.report(training.trial, training.done, loss)
        if goes_on and training.done < table.epochs:
            heapq.heappush(due, (now + 1.0, next(order), training))
    result.trials = len(trainings)
    return result
