"""Replay a search on recorded curves: the scheduler of a real run, with a simulated clock.

    Coordinator ──Task──▶ ReplayExecutor: suggest → epoch → report → should_prune → …
                ◀─events─ in the order of simulated time

The executor takes the place of the processes. Everything else, sampler, pruner, promotion and
storage, is the code that runs real trials. Nothing is trained: an epoch takes simulated seconds.
"""

from __future__ import annotations

import heapq
import itertools
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import optuna
from optuna.distributions import distribution_to_json
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from tables import Table

from supermax.engine.processes.executor import (
    Cell,
    CellExited,
    CellReady,
    MessageReceived,
    ProcessEvent,
)
from supermax.engine.processes.protocol import (
    PAUSE,
    Exited,
    Finished,
    Message,
    ObjectiveLoaded,
    Reply,
    Report,
    ShouldPrune,
    Suggest,
    Task,
)
from supermax.engine.run import session
from supermax.engine.run.options import RunOptions
from supermax.engine.trial.outcome import COMPLETE, INTERRUPTED, PRUNED, Outcome


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

    def incumbent(self) -> list[float]:
        """Return the lowest loss after each epoch that was trained, on any worker."""
        return list(itertools.accumulate((epoch.loss for epoch in self.epochs), min))


class BudgetSpent(Exception):
    """Ends a replay."""


class ReplayExecutor:
    """Executor without processes: trials take their reports from a table."""

    load_timeout = 60.0

    def __init__(self, table: Table, budget: int) -> None:
        """`budget`: number of epochs after which the search ends."""
        self.table, self.budget = table, budget
        self.cells: dict[int, Cell] = {}
        self.cells_started = 0
        self.replay = Replay()
        self._now = 0.0
        self._events: list[ProcessEvent] = []
        self._trials: dict[int, Generator[Message | float, object, None]] = {}
        self._reached: dict[int, int] = {}  # epochs in the checkpoint of each trial
        self._due: list[tuple[float, int, Cell]] = []
        self._order = itertools.count()

    def start(self, patience: object = None) -> None:
        self._events.append(ObjectiveLoaded(None))

    def start_cell(self, device: str | None) -> Cell:
        self.cells_started += 1
        cell = Cell(self.cells_started, device, pid=1, ready=True)
        self.cells[cell.number] = cell
        self._events.append(CellReady(cell))
        return cell

    def send_task(self, cell: Cell, task: Task, log: Path) -> None:
        cell.trials += 1
        self._trials[cell.number] = self._program(task)
        self._go_on(cell, None)

    def send(self, cell: Cell, message: Message) -> None:
        if isinstance(message, Reply):
            if message.error is not None:
                raise message.error
            self._go_on(cell, message.value)

    def _go_on(self, cell: Cell, reply: object) -> None:
        """Run a trial until it waits for a reply or for an epoch to end."""
        trial = self._trials[cell.number]
        step = trial.send(reply)
        while isinstance(step, Report):
            self._events.append(MessageReceived(cell, step))
            step = next(trial)
        if isinstance(step, float):
            heapq.heappush(self._due, (self._now + step, next(self._order), cell))
        else:
            self._events.append(MessageReceived(cell, step))

    def _program(self, task: Task) -> Generator[Message | float, object, None]:
        number, params = task.trial.number, {}
        for name, distribution in self.table.space.items():
            value = yield Suggest(name, distribution_to_json(distribution))
            assert isinstance(value, float)
            params[name] = distribution.to_external_repr(value)
        curve = self.table.curve(params)
        for epoch in range(self._reached.get(number, 0), self.table.epochs):
            yield 1.0
            self.replay.epochs.append(Epoch(self._now, number, float(curve[epoch])))
            yield Report(epoch + 1, float(curve[epoch]))
            answer = yield ShouldPrune()
            if answer == PAUSE:
                self._reached[number] = epoch + 1
                yield _finished(task, INTERRUPTED)
            elif answer:
                yield _finished(task, PRUNED)
        yield _finished(task, COMPLETE, float(curve.min()))

    def wait(self, timeout: float | None) -> list[ProcessEvent]:
        if not self._events and len(self.replay.epochs) >= self.budget:
            raise BudgetSpent
        if not self._events and self._due:
            self._now, _, cell = heapq.heappop(self._due)
            self._go_on(cell, None)
        events, self._events = self._events, []
        return events

    def close_sending_side(self, cell: Cell) -> None:
        del self.cells[cell.number]
        self._events.append(CellExited(cell, Exited(cell.number, 0, None, 0, 0)))

    def signal(self, cell: Cell, signum: int, *, group: bool = True) -> None:
        raise AssertionError("nothing is killed in a replay")

    def has_pending(self, cell: Cell) -> bool:
        return False

    def wake(self) -> None: ...

    def close(self) -> None: ...

    def close_in_child(self) -> None: ...


def _finished(task: Task, state: str, *values: float) -> Finished:
    outcome = Outcome(task.attempt, state, values=list(values) or None)
    return Finished(outcome.to_json(), None)


def replay(
    table: Table, sampler: BaseSampler, pruner: BasePruner, *, budget: int, workers: int
) -> Replay:
    """Search on a table until `budget` epochs are spent."""
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    executor = ReplayExecutor(table, budget)
    folder = Path(tempfile.mkdtemp(prefix="replay-", dir="/dev/shm"))
    options = RunOptions(workers=workers, reuse_cells=True, run_dir=folder)
    try:
        with mock.patch.object(session, "_executor", return_value=executor):
            session.run(study, _objective, options)
    except BudgetSpent:
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    executor.replay.trials = len(study.get_trials(deepcopy=False))
    return executor.replay


def _objective(trial: optuna.Trial) -> float:
    raise AssertionError("the executor runs the trials")
