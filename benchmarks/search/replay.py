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
from collections.abc import Generator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import optuna
from optuna.distributions import distribution_to_json
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from simulate import Epoch, Replay
from tables import Params, Table

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
        self._space = {name: distribution_to_json(d) for name, d in table.space.items()}
        self._curves: dict[int, np.ndarray] = {}  # by trial
        self._reached: dict[int, int] = {}  # epochs in the checkpoint of each trial
        self._due: list[tuple[float, int, Cell]] = []
        self._order = itertools.count()
        self._cell: Cell | None = None  # of the last events

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
        number = task.trial.number
        if number not in self._curves:
            params = {}
            for name, distribution in self._space.items():
                value = yield Suggest(name, distribution)
                assert isinstance(value, float)
                params[name] = self.table.space[name].to_external_repr(value)
            self._curves[number] = self.table.curve(params)
        curve = self._curves[number]
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
        return self._of_one_cell()

    def _of_one_cell(self) -> list[ProcessEvent]:
        """Return events of the same cell as before, while it has any. So a trial gets all its
        parameters before the next one starts, and a seed draws the same configurations with any
        number of workers, as in simulate.py."""
        if self._events and all(_cell_of(event) is not self._cell for event in self._events):
            self._cell = _cell_of(self._events[0])
        found = [event for event in self._events if _cell_of(event) is self._cell]
        self._events = [event for event in self._events if _cell_of(event) is not self._cell]
        return found

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


def _cell_of(event: ProcessEvent) -> Cell | None:
    cell = getattr(event, "cell", None)
    return cell if isinstance(cell, Cell) else None


def _finished(task: Task, state: str, *values: float) -> Finished:
    outcome = Outcome(task.attempt, state, values=values or None)
    return Finished(outcome.to_json(), None)


def replay(
    table: Table,
    sampler: BaseSampler,
    pruner: BasePruner,
    *,
    budget: int,
    workers: int,
    name: str = "replay",
    known: Sequence[Params] = (),
) -> tuple[Replay, optuna.Study]:
    """Search on a table until `budget` epochs are spent. Return the study as well. `name`: of the
    study. HyperbandPruner draws brackets from it. `known`: configurations to begin with."""
    study = optuna.create_study(study_name=name, sampler=sampler, pruner=pruner)
    for params in known:
        study.enqueue_trial(dict(params))
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
    return executor.replay, study


def _objective(trial: optuna.Trial) -> float:
    raise AssertionError("the executor runs the trials")
