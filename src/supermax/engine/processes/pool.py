"""Pool of cells: started ahead of their trials, replaced when unhealthy.

keep_ready ──▶ starting ──ready──▶ idle ──pick──▶ (busy) ──release──▶ idle again, or leaving
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence, Set

from supermax._util.text import counted
from supermax.engine import events
from supermax.engine.processes.executor import KILL, Cell, Executor, machine_of
from supermax.engine.processes.protocol import Exited
from supermax.engine.storage.patience import Patience, Subject
from supermax.engine.trial.faults import Kind, signal_name
from supermax.errors import EnvironmentFault, UserError

_START_TIMEOUT = 120.0  # seconds until a cell is ready
_EXIT_TIMEOUT = 10.0  # seconds for a cell to exit after its trial
_MAX_FAILED_STARTS = 5  # in a row
_MAX_SERVER_DEATHS = 20  # in a row, without a trial finished between them
_MAX_DEATHS_LOADING = 3  # before the first load: more likely caused by the objective
_BACK_OFF = 0.25  # seconds; doubles with each failed start
_FORK_SERVER = Subject(
    "the fork server to start",
    "The fork server could not be started",
    "Make room on the disk, or end other processes,",
)


class Pool:
    """Cells by state: starting, idle and leaving; busy ones are the coordinator's.

    `reuse`: cells run one trial after another. `devices`: values of CUDA_VISIBLE_DEVICES to
    spread the cells over, or hosts; empty: as inherited. `per_device`: trials at the same time on
    each; None: an equal share of `workers`. Trials start on none of those in `paused`, and on
    machines in `suspects` only if there is no other.
    """

    def __init__(
        self,
        processes: Executor,
        workers: int,
        reuse: bool,
        devices: Sequence[str],
        emit: events.Listener,
        patience: Patience,
        per_device: int | None = None,
    ) -> None:
        self._processes = processes
        self._patience = patience
        self._workers = workers
        self._reuse = reuse
        self.devices = list(devices)
        self.has_hosts = per_device is not None
        self._per_device = per_device or math.ceil(workers / max(1, len(devices)))
        self.paused: set[str | None] = set()
        self.suspects: set[str] = set()
        self._emit = emit
        self._loaded = self._ever_loaded = False
        self._load_by: float | None = None  # None: no fork server was needed yet
        self._starting: dict[int, tuple[Cell, float]] = {}
        self._idle: list[Cell] = []
        self._leaving: dict[int, tuple[Cell, float, str | None]] = {}
        self._failed_starts = 0
        self._fork_server_deaths = 0
        self._not_before = 0.0  # no cell starts before this moment of time.monotonic()
        self._looked_at = 0.0  # when `_not_before` was last compared with the clock
        self.faults: Counter[str] = Counter()

    @property
    def workers(self) -> int:
        """Number of trials that run at the same time; fewer once a device is retired."""
        if not self.devices:
            return self._workers
        return min(self._workers, self._per_device * len(self.devices))

    def keep_ready(self, launches: int, busy: int) -> None:
        """Start the fork server when it is first needed, and cells ahead of time, at most as many
        as the `launches` to come can use."""
        if launches > 0 and self._load_by is None:
            self._load_by = time.monotonic() + self._processes.load_timeout
            self._processes.start()
        self._looked_at = time.monotonic()
        if not self._loaded or self._looked_at < self._not_before:
            return
        wanted = min(self.workers - busy if self._reuse else self.workers, launches)
        for _ in range(wanted - len(self._idle) - len(self._starting)):
            self._start()
        # An idle cell is of no use on a host that is busy while another one has nothing to do.
        used = {cell.device for cell in self._processes.cells.values()}
        unused = [host for host in self.devices if self.has_hosts and host not in used]
        for host in unused[: max(0, launches)]:
            self._start(host)

    def _start(self, device: str | None = None) -> None:
        cell = self._processes.start_cell(device or self._least_loaded_device())
        self._starting[cell.number] = (cell, time.monotonic() + _START_TIMEOUT)

    def _least_loaded_device(self) -> str | None:
        if not self.devices:
            return None
        load = Counter(cell.device for cell in self._staying())
        return min(self.devices, key=lambda device: (self.pauses(device), load[device]))

    def _staying(self) -> list[Cell]:
        return [c for c in self._processes.cells.values() if c.number not in self._leaving]

    def lacks_cell_on(self, devices: Sequence[str]) -> bool:
        """Return whether no cell on `devices` is idle. If there is none at all, have one start in
        place of an idle cell."""
        if any(cell.device in devices for cell in self._idle):
            return False
        if self._idle and not any(cell.device in devices for cell in self._staying()):
            self._replace(self._idle[0], devices[0])
        return True

    def pauses(self, device: str | None) -> bool:
        """Return whether no trial may start on a device for now."""
        if device in self.paused:
            return True
        suspect = device is not None and machine_of(device) in self.suspects
        return suspect and not self.machines() <= self.suspects

    def machines(self) -> Set[str]:
        """Return the machines in service; none without a cluster."""
        return {machine_of(host) for host in self.devices} if self.has_hosts else set()

    def retire_machine(self, machine: str, why: str) -> None:
        """Use a machine of the cluster no more, and end all cells there."""
        self.devices = [host for host in self.devices if machine_of(host) != machine]
        self._loaded = bool(self.devices)
        self._processes.retire_machine(machine, why)

    def retire(self, device: str | None, why: str) -> None:
        """Use a device no more, and end the cells on it that run no trial."""
        self.devices = [name for name in self.devices if name != device]
        starting = [cell for cell, _ in self._starting.values()]
        for cell in [cell for cell in (*self._idle, *starting) if cell.device == device]:
            self._starting.pop(cell.number, None)
            if cell in self._idle:
                self._idle.remove(cell)
            self.kill(cell, why, once=True)

    def kill(self, cell: Cell, why: str, *, once: bool = False) -> None:
        """Kill a cell. `once`: not again, if that takes long: a process can hang in the driver of
        a lost GPU, which is no fault of the fork server."""
        self.dismiss(cell, why)
        if once:
            self._leaving[cell.number] = (cell, math.inf, why)
        self._processes.signal(cell, KILL)

    def idle_on(self, device: str | None) -> list[Cell]:
        return [cell for cell in self._idle if cell.device == device]

    def pick(
        self, *, fresh: bool, busy: Sequence[Cell], devices: Sequence[str | None] | None = None
    ) -> Cell | None:
        """Take an idle cell out of the pool; None: there is none that suits.

        It is on the first of `devices` that has one, or, if `devices` is None, on the device with
        the fewest `busy` cells. `fresh`: it must not have run a trial yet.
        """
        usable = [cell for cell in self._idle if not self.pauses(cell.device)]
        suitable = [cell for cell in usable if not (fresh and cell.trials)]
        if devices is not None:
            warm = sorted(suitable, key=lambda cell: -cell.trials)
            candidates = [cell for device in devices for cell in warm if cell.device == device]
            if not candidates and devices and usable:
                self._replace(usable[0], devices[0])
        else:
            candidates = suitable
            if not candidates and fresh and usable:
                self._replace(usable[0], None)
            candidates = self._by_device_load(candidates, busy)
        if not candidates:
            return None
        self._idle.remove(candidates[0])
        return candidates[0]

    def dismiss_surplus(self) -> bool:
        """Dismiss idle cells that have run trials, except one per device; return whether there
        were any."""
        used = [cell for cell in self._idle if cell.trials]
        first = {cell.device: cell for cell in reversed(used)}
        surplus = [cell for cell in used if cell is not first[cell.device]]
        for cell in surplus:
            self._idle.remove(cell)
            self.dismiss(cell)
        return bool(surplus)

    def _by_device_load(self, cells: list[Cell], busy: Sequence[Cell]) -> list[Cell]:
        if not self.devices:
            return cells
        load = Counter(cell.device for cell in busy)
        available = [cell for cell in cells if load[cell.device] < self._per_device]
        return sorted(available, key=lambda cell: load[cell.device])

    def _replace(self, cell: Cell, device: str | None) -> None:
        """Dismiss an idle cell and start one on `device`, unless one is starting there already."""
        if any(other.device == device for other, _ in self._starting.values() if device):
            return
        self._idle.remove(cell)
        self.dismiss(cell)
        self._start(device)

    @property
    def has_idle(self) -> bool:
        return any(not self.pauses(cell.device) for cell in self._idle)

    def release(self, cell: Cell, healthy: bool, unclean: str | None) -> None:
        """Take a cell back whose trial has ended, or dismiss it. `unclean`: the trial's
        remains."""
        retired = self.devices and cell.device not in self.devices
        if self._reuse and healthy and not retired:
            self._idle.append(cell)
        else:
            self.dismiss(cell, unclean)

    def put_back(self, cell: Cell) -> None:
        """Take a cell back that got no trial."""
        self._idle.append(cell)

    def dismiss(self, cell: Cell, note: str | None = None) -> None:
        """Have a cell exit by itself; kill it after _EXIT_TIMEOUT seconds."""
        self._leaving[cell.number] = (cell, time.monotonic() + _EXIT_TIMEOUT, note)
        self._processes.close_sending_side(cell)

    def host_ready(self, host: str, why_not_fork: str | None) -> None:
        """Start cells on a host from now on."""
        self.devices.append(host)
        self.objective_loaded(why_not_fork if not self._ever_loaded else None)

    def host_lost(self, host: str, cells: Sequence[Cell]) -> None:
        """Forget a host that is gone, and its cells."""
        if host in self.devices:
            self.devices.remove(host)
        self._loaded = bool(self.devices)
        for cell in cells:
            self._starting.pop(cell.number, None)
            self._leaving.pop(cell.number, None)
            if cell in self._idle:
                self._idle.remove(cell)

    def objective_loaded(self, why_not_fork: str | None) -> None:
        self._loaded = self._ever_loaded = True
        if why_not_fork is not None:
            self._emit(
                events.Notice(
                    f"Each cell starts as a new interpreter instead of a fork, which is slower, "
                    f"because {why_not_fork}."
                )
            )

    def objective_broken(self, error: str, traceback: str) -> None:
        raise UserError(
            f"The objective cannot be loaded in another process: {error}. The modules that it "
            f"uses must be importable there; move start-up work that needs more than that into "
            f"the objective.\n\n{traceback}"
        )

    def cell_ready(self, cell: Cell) -> None:
        if self._starting.pop(cell.number, None) is None:  # dismissed meanwhile
            return
        self._failed_starts = 0
        self._idle.append(cell)
        self._emit(events.CellStarted(cell.number, cell.pid or 0))

    def cell_exited(self, cell: Cell, exit: Exited, log_tail: str, *, ran: bool) -> None:
        """Remove a cell that has exited. `ran`: a trial was running in it."""
        note = self._leaving.pop(cell.number, (cell, 0.0, None))[2]
        if cell in self._idle:
            self._idle.remove(cell)
            note = f"ended while idle ({_exit_text(exit)})"
        elif self._starting.pop(cell.number, None) and not cell.ready:
            self._failed_start(_exit_text(exit), log_tail)
        elif not ran and (exit.signum or exit.code):
            note = f"{note or 'after its trial'}: {_exit_text(exit)}"
        if exit.strays:
            left = f"ended {counted(exit.strays, 'process', 'processes')} that it had left behind"
            note = f"{note}; {left}" if note else left
        self._emit(events.CellEnded(cell.number, cell.trials, note))

    def closed(self) -> None:
        """Emit the end of dismissed cells whose exit the run did not wait for."""
        for cell, _, note in self._leaving.values():
            self._emit(events.CellEnded(cell.number, cell.trials, note))
        self._leaving.clear()

    def _failed_start(self, how: str, log_tail: str) -> None:
        self.faults[str(Kind.NO_START)] += 1
        self._failed_starts += 1
        self._not_before = time.monotonic() + _BACK_OFF * 2**self._failed_starts
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise EnvironmentFault(
                f"{self._failed_starts} cells in a row did not start (the last one: {how}). "
                f"Check that the machine has memory and processes left, then call again. The fork "
                f"server's log ends with:\n"
                f"{log_tail[-1500:] or '(nothing)'}"
            )

    def restart(self, log_tail: str) -> None:
        """Start a new fork server after the old one and all its cells have died."""
        self._fork_server_deaths += 1
        most = _MAX_SERVER_DEATHS if self._ever_loaded else _MAX_DEATHS_LOADING
        if self._fork_server_deaths >= most:
            raise EnvironmentFault(
                f"The fork server died {counted(self._fork_server_deaths, 'time')} "
                f"{'in a row' if self._ever_loaded else 'while it loaded the objective'}. "
                f"Its log ends with:\n{log_tail[-1500:] or '(nothing)'}"
            )
        self._starting.clear()
        self._idle.clear()
        self._leaving.clear()
        self._loaded = False
        self._load_by = time.monotonic() + self._processes.load_timeout
        self._processes.start(self._patience.wait_for(_FORK_SERVER))
        self._emit(
            events.Notice("The fork server died, and its cells with it; a new one was started.")
        )

    def trial_finished(self) -> None:
        self._fork_server_deaths = 0

    def next_deadline(self) -> float:
        """Return the moment of time.monotonic() at which enforce_deadlines is due; inf: never."""
        due = [deadline for _, deadline in self._starting.values()]
        due += [deadline for _, deadline, _ in self._leaving.values()]
        due += [self._load_by] if self._load_by is not None and not self._loaded else []
        due += [self._not_before] if self._not_before > self._looked_at else []
        return min(due, default=math.inf)

    def enforce_deadlines(self) -> None:
        now = time.monotonic()
        if self._load_by is not None and not self._loaded and now > self._load_by:
            raise EnvironmentFault(
                f"Loading the objective takes longer than {self._processes.load_timeout:.0f} s. "
                f"Move start-up work into the objective."
            )
        for number, (cell, deadline) in self._starting.items():
            if deadline <= now:
                self._processes.signal(cell, KILL)
                self._starting[number] = (cell, now + 1.0)
        for number, (cell, deadline, note) in self._leaving.items():
            if deadline <= now:
                self._processes.signal(cell, KILL)
                reason = note or f"did not exit within {_EXIT_TIMEOUT:.0f} s of its trial"
                self._leaving[number] = (cell, now + 1.0, reason)


def _exit_text(exit: Exited) -> str:
    return signal_name(exit.signum) if exit.signum else f"exit code {exit.code}"
