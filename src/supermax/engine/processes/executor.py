"""Interface between the coordinator and the processes that run its trials.

    start_cell, send_task, signal ──▶ Executor ──▶ cells, here or on other machines
    MessageReceived, CellReady, CellExited, … ◀── wait()

`transport.Processes` runs cells on this machine, `hosts.HostProcesses` on several.
"""

from __future__ import annotations

import os
import signal
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supermax._util import system
from supermax.engine.processes.protocol import Exited, LoadFailed, Message, ObjectiveLoaded, Task
from supermax.engine.storage.patience import Wait

TERM, KILL, SHOW_STACK = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR2


@dataclass
class Cell:
    """Process that runs one trial at a time."""

    number: int
    device: str | None = None
    """CUDA_VISIBLE_DEVICES of the process, or the name of its host; None: as inherited."""
    pid: int | None = None
    ready: bool = False
    trials: int = 0
    """Number of attempts it was given so far."""
    kills: int = 0
    """Number of SIGKILLs sent to it."""
    oom_kills_before: int | None = None
    """Count of this machine's OOM killer at its last task; None: it runs on another machine."""
    machine: str | None = None
    """Machine of the cluster it runs on; None: this one."""


@dataclass(frozen=True)
class MessageReceived:
    cell: Cell
    message: Message


@dataclass(frozen=True)
class CellReady:
    """Event: a cell can take a task."""

    cell: Cell


@dataclass(frozen=True)
class CellDisconnected:
    """Event: a cell closed its socket or sent invalid data. Usually it is exiting."""

    cell: Cell


@dataclass(frozen=True)
class CellExited:
    cell: Cell
    exit: Exited


@dataclass(frozen=True)
class ForkServerDied:
    """Event: the fork server died, and with it every cell."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class HostReady:
    """Event: a host has loaded the objective and can start cells."""

    host: str
    why_not_fork: str | None
    """Reason why cells start as new interpreters there; None: they are forked."""


@dataclass(frozen=True)
class HostLost:
    """Event: a host, or all hosts of a machine, are gone, and with them their cells."""

    host: str
    cells: tuple[Cell, ...]
    why: str


def machine_of(device: str) -> str:
    """Return the machine of a host, which is named machine#number; a GPU as it is."""
    return device.partition("#")[0]


ProcessEvent = (
    MessageReceived
    | CellReady
    | CellDisconnected
    | CellExited
    | ForkServerDied
    | HostReady
    | HostLost
    | ObjectiveLoaded
    | LoadFailed
)


def exit_of_killed(cell: Cell) -> Exited:
    """Return the end of a cell that was killed with its fork server, or with its machine."""
    before = cell.oom_kills_before
    oom_kills = 0 if before is None else max(0, system.oom_kills() - before)
    return Exited(cell.number, None, int(KILL), 0, 0, oom_kills)


class Executor(Protocol):
    """Fork servers and cells of a run. It knows processes, not trials; only wait() and close()
    block."""

    cells: dict[int, Cell]
    cells_started: int
    """Number of cells started so far."""
    load_timeout: float
    """Seconds in which the objective must be loaded."""

    def start(self, patience: Wait | None = None) -> None:
        """Start loading the objective; wait() returns the result as an event. With `patience`,
        retry while the system refuses to start a process."""

    def start_cell(self, device: str | None) -> Cell:
        """Start a cell on a device, or on a host."""

    def send_task(self, cell: Cell, task: Task, log: Path) -> None:
        """Send a cell its task, and have its output appended to `log`."""

    def send(self, cell: Cell, message: Message) -> None:
        """Send a message to a cell. One that cannot be reached is killed."""

    def has_pending(self, cell: Cell) -> bool:
        """Return whether messages of a cell have arrived that were not read yet."""

    def close_sending_side(self, cell: Cell) -> None:
        """Close the sending side of its connection: an idle cell then exits."""

    def signal(self, cell: Cell, signum: int, *, group: bool = True) -> None:
        """Send a signal to a cell; `group`: to its process group."""

    def wake(self) -> None:
        """Make wait() return. Safe in a signal handler, and after close()."""

    def wait(self, timeout: float | None) -> list[ProcessEvent]:
        """Block until an event or until `timeout` seconds have passed; return all events so far.

        `timeout` None: no limit.
        """

    def retire_machine(self, machine: str, why: str) -> None:
        """End the hosts on a machine of a cluster, and start none there any more. wait() returns
        the event."""

    def close(self) -> None:
        """End all processes."""

    def close_in_child(self) -> None:
        """Close all descriptors in a forked copy of this process, and signal nothing. It may come
        after close()."""


_open: weakref.WeakSet[Executor] = weakref.WeakSet()


def close_in_forks(executor: Executor) -> None:
    """Close an executor in each process that the user's program forks. Otherwise that process
    would hold the sockets open after the program has exited, and cells would not end with it."""
    _open.add(executor)


def _close_in_child() -> None:
    for executor in list(_open):
        executor.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
