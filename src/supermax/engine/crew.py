"""Which cells there are, which are ready, which must go: started ahead, replaced when unwell.

keep_ready ──▶ starting ──ready──▶ idle ──pick──▶ (busy) ──served──▶ idle again, or leaving
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from supermax.engine import events as say
from supermax.engine.faults import Kind, signal_name
from supermax.engine.fleet import KILL, Cell, Fleet
from supermax.engine.patience import Patience, Subject
from supermax.engine.protocol import Exited
from supermax.errors import EnvironmentFault, UserError

_LOAD_PATIENCE = 900.0  # importing what the objective needs
_START_PATIENCE = 120.0
_LINGER = 10.0  # for a cell to end by itself after its trial
_MOST_FAILED_STARTS = 5
_MOST_KEEPER_DEATHS = 20  # in a row, without a trial finished between them
_MOST_DEATHS_LOADING = 3  # before anything was loaded: more likely the objective's doing
_BACK_OFF = 0.25
_KEEPER = Subject(
    "the process that makes cells to start",
    "The process that makes cells could not be started",
    "Make room on the disk, or end other processes,",
)


class Crew:
    def __init__(
        self,
        fleet: Fleet,
        workers: int,
        reuse: bool,
        devices: Sequence[str],
        emit: Callable[[say.Event], None],
        patience: Patience,
    ) -> None:
        self._fleet = fleet
        self._patience = patience
        self._workers = workers
        self._reuse = reuse
        self._devices = devices
        self._emit = emit
        self._loaded = self._ever_loaded = False
        self._load_by = time.monotonic() + _LOAD_PATIENCE
        self._starting: dict[int, tuple[Cell, float]] = {}
        self._idle: list[Cell] = []
        self._leaving: dict[int, tuple[Cell, float, str | None]] = {}
        self._failed_starts = 0
        self._keeper_deaths = 0
        self._not_before = 0.0
        self.faults: Counter[str] = Counter()

    # Having cells.

    def keep_ready(self, launches: int, busy: int) -> None:
        """Start cells ahead, as many as the coming launches can use."""
        if not self._loaded or time.monotonic() < self._not_before:
            return
        wanted = min(self._workers - busy if self._reuse else self._workers, launches)
        for _ in range(wanted - len(self._idle) - len(self._starting)):
            self._start()

    def _start(self, device: str | None = None) -> None:
        cell = self._fleet.start_cell(device or self._emptiest_device())
        self._starting[cell.number] = (cell, time.monotonic() + _START_PATIENCE)

    def _emptiest_device(self) -> str | None:
        if not self._devices:
            return None
        staying = [c for c in self._fleet.cells.values() if c.number not in self._leaving]
        load = Counter(cell.device for cell in staying)
        return min(self._devices, key=lambda device: load[device])

    def idle_on(self, device: str | None) -> list[Cell]:
        return [cell for cell in self._idle if cell.device == device]

    def pick(
        self, *, fresh: bool, busy: Sequence[Cell], devices: Sequence[str | None] | None = None
    ) -> Cell | None:
        """An idle cell on a device with room, or on the first of `devices` that has one; with
        `fresh`, one that has run nothing yet."""
        suitable = [cell for cell in self._idle if not (fresh and cell.trials)]
        if devices is not None:
            warm = sorted(suitable, key=lambda cell: -cell.trials)
            candidates = [cell for device in devices for cell in warm if cell.device == device]
            if not candidates and devices and self._idle:
                self._replace(self._idle[0], devices[0])
        else:
            candidates = suitable
            if not candidates and fresh and self._idle:
                self._replace(self._idle[0], None)
            candidates = self._less_loaded(candidates, busy)
        if not candidates:
            return None
        self._idle.remove(candidates[0])
        return candidates[0]

    def let_go_of_used(self) -> bool:
        """Of idle cells that have run trials, keep one on each device; says whether any went."""
        used = [cell for cell in self._idle if cell.trials]
        first = {cell.device: cell for cell in reversed(used)}
        surplus = [cell for cell in used if cell is not first[cell.device]]
        for cell in surplus:
            self._idle.remove(cell)
            self.dismiss(cell)
        return bool(surplus)

    def _less_loaded(self, cells: list[Cell], busy: Sequence[Cell]) -> list[Cell]:
        if not self._devices:
            return cells
        load = Counter(cell.device for cell in busy)
        room = math.ceil(self._workers / len(self._devices))
        found = [cell for cell in cells if load[cell.device] < room]
        return sorted(found, key=lambda cell: load[cell.device])

    def _replace(self, cell: Cell, device: str | None) -> None:
        """An idle cell that does not suit goes; a new one comes, unless it is on its way."""
        if any(other.device == device for other, _ in self._starting.values() if device):
            return
        self._idle.remove(cell)
        self.dismiss(cell)
        self._start(device)

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    def served(self, cell: Cell, healthy: bool, unclean: str | None) -> None:
        """A trial came to its end in `cell`."""
        if self._reuse and healthy:
            self._idle.append(cell)
        else:
            self.dismiss(cell, unclean)

    def dismiss(self, cell: Cell, note: str | None = None) -> None:
        """Let a cell end by itself; it is killed if it does not."""
        self._leaving[cell.number] = (cell, time.monotonic() + _LINGER, note)
        self._fleet.hang_up(cell)

    # Hearing of cells.

    def loaded(self, why_not_fork: str | None) -> None:
        self._loaded = self._ever_loaded = True
        if why_not_fork is not None:
            self._emit(
                say.Notice(
                    f"Each cell starts as a new interpreter, which is slower, because "
                    f"{why_not_fork}."
                )
            )

    def broken(self, error: str, traceback: str) -> None:
        raise UserError(
            f"The objective cannot be loaded in another process: {error}. What it refers to must "
            f"be importable there; move start-up work into the objective if it needs more than "
            f"that.\n\n{traceback}"
        )

    def came_up(self, cell: Cell) -> None:
        self._starting.pop(cell.number, None)
        self._failed_starts = 0
        self._idle.append(cell)
        self._emit(say.CellStarted(cell.number, cell.pid or 0))

    def gone(self, cell: Cell, exit: Exited, log_tail: str, *, ran: bool) -> None:
        """A cell has ended, expected or not."""
        note = self._leaving.pop(cell.number, (cell, 0.0, None))[2]
        if cell in self._idle:
            self._idle.remove(cell)
            note = f"ended while idle ({_how(exit)})"
        elif self._starting.pop(cell.number, None) and not cell.ready:
            self._failed_start(_how(exit), log_tail)
        elif not ran and (exit.signum or exit.code):
            note = f"{note or 'after its trial'}: {_how(exit)}"
        if exit.strays:
            left = f"{exit.strays} process(es) it had left behind were ended"
            note = f"{note}; {left}" if note else left
        self._emit(say.CellEnded(cell.number, cell.trials, note))

    def closed(self) -> None:
        """The run is over before the cells that were let go have been heard to end."""
        for cell, _, note in self._leaving.values():
            self._emit(say.CellEnded(cell.number, cell.trials, note))
        self._leaving.clear()

    def _failed_start(self, how: str, log_tail: str) -> None:
        self.faults[str(Kind.NO_START)] += 1
        self._failed_starts += 1
        self._not_before = time.monotonic() + _BACK_OFF * 2**self._failed_starts
        if self._failed_starts >= _MOST_FAILED_STARTS:
            raise EnvironmentFault(
                f"{self._failed_starts} cells in a row did not come up (the last one: {how}). "
                f"Is the machine out of memory or processes? The keeper's log ends with:\n"
                f"{log_tail[-1500:] or '(nothing)'}"
            )

    def keeper_gone(self, log_tail: str) -> None:
        """Start over: the keeper and all cells are dead."""
        self._keeper_deaths += 1
        most = _MOST_KEEPER_DEATHS if self._ever_loaded else _MOST_DEATHS_LOADING
        if self._keeper_deaths >= most:
            raise EnvironmentFault(
                f"The process that makes cells ended {self._keeper_deaths} time(s) "
                f"{'in a row' if self._ever_loaded else 'while it loaded the objective'}. "
                f"Its log ends with:\n{log_tail[-1500:] or '(nothing)'}"
            )
        self._starting.clear()
        self._idle.clear()
        self._leaving.clear()
        self._loaded = False
        self._load_by = time.monotonic() + _LOAD_PATIENCE
        self._fleet.start_keeper(self._patience.wait_for(_KEEPER))
        self._emit(say.Notice("The process that makes cells was killed; a new one was started."))

    def trial_finished(self) -> None:
        self._keeper_deaths = 0

    # Deadlines.

    def next_deadline(self) -> float:
        due = [deadline for _, deadline in self._starting.values()]
        due += [deadline for _, deadline, _ in self._leaving.values()]
        due += [self._load_by] if not self._loaded else []
        due += [self._not_before] if self._not_before > time.monotonic() else []
        return min(due, default=math.inf)

    def enforce_deadlines(self) -> None:
        now = time.monotonic()
        if not self._loaded and now > self._load_by:
            raise EnvironmentFault(
                f"Loading the objective takes longer than {_LOAD_PATIENCE:.0f} s. Move start-up "
                f"work into the objective."
            )
        for number, (cell, deadline) in self._starting.items():
            if deadline <= now:
                self._fleet.signal(cell, KILL)
                self._starting[number] = (cell, now + 1.0)
        for number, (cell, deadline, note) in self._leaving.items():
            if deadline <= now:
                self._fleet.signal(cell, KILL)
                kept = note or f"did not end within {_LINGER:.0f} s of its trial"
                self._leaving[number] = (cell, now + 1.0, kept)


def _how(exit: Exited) -> str:
    return signal_name(exit.signum) if exit.signum else f"exit code {exit.code}"
