"""The coordinator's hold on its processes: the keeper, and the cells it makes.

    start_cell, give, signal ──▶ Fleet ──▶ keeper and cells
    Heard, CellReady, CellGone, KeeperGone ◀── wait() ◀── one selector over all their sockets

It knows processes, not trials. Nothing here blocks except wait(), and close() for as long as
the keeper takes to end everything.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from supermax.engine import descriptors, kernel, standby
from supermax.engine.patience import Wait
from supermax.engine.protocol import (
    CaptureLog,
    Channel,
    ConnectionLost,
    Exited,
    Loaded,
    LoadFailed,
    Message,
    Ready,
    Setup,
    SignalCell,
    StartCell,
    Started,
    Task,
)
from supermax.engine.standby import SEND_PATIENCE, TAG, thread_limits
from supermax.files import open_private

TERM, KILL, SHOW_STACK = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR2
_MOST_KILLS = 10
_CLOSING = 15.0
_LONG_LOG = 1 << 20  # bytes


@dataclass
class Cell:
    """A process that runs one trial at a time."""

    number: int
    channel: Channel
    device: str | None = None
    pid: int | None = None
    ready: bool = False
    trials: int = 0
    kills: int = 0  # how often it was sent SIGKILL


@dataclass(frozen=True)
class Heard:
    cell: Cell
    message: Message


@dataclass(frozen=True)
class CellReady:
    cell: Cell


@dataclass(frozen=True)
class CellMute:
    """A cell closed its socket, or sends what nobody understands. Mostly it is just ending."""

    cell: Cell


@dataclass(frozen=True)
class CellGone:
    cell: Cell
    exit: Exited


@dataclass(frozen=True)
class KeeperGone:
    """The keeper died, and with it every cell."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ObjectiveLoaded:
    why_not_fork: str | None


@dataclass(frozen=True)
class ObjectiveBroken:
    error: str
    traceback: str


FleetEvent = (
    Heard | CellReady | CellMute | CellGone | KeeperGone | ObjectiveLoaded | ObjectiveBroken
)


class Fleet:
    def __init__(self, objective: bytes, *, identity: str, workers: int, fresh: bool, log: Path):
        self.cells: dict[int, Cell] = {}
        self.made = 0
        self._objective = objective
        self._fresh = fresh
        self._log = log
        self._tag = f"{TAG}={identity}"
        self._env = {**os.environ, **thread_limits(workers, os.environ), TAG: identity}
        self._selector = selectors.DefaultSelector()
        with descriptors.in_words("The run"):
            self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._loaded = False
        self._control: Channel | None = None
        _open.add(self)

    # Doing.

    def start_keeper(self, patience: Wait | None = None) -> None:
        """Start the process that loads the objective; wait() tells how that went. With `patience`
        it is tried again while the machine has no room for it."""
        while True:
            try:
                self._control = self._start_keeper()
                break
            except OSError as error:
                if patience is None:
                    raise descriptors.fault("The process that makes cells", error) from error
                patience.pause(error.strerror or str(error))
        self._loaded = False
        self._selector.register(self._control, selectors.EVENT_READ)

    def _start_keeper(self) -> Channel:
        with self._open_log() as log:
            started = standby.take(self._env) or standby.start(self._env, log)
            self._keeper = started.process
            try:
                started.write(self._objective)
                setup = Setup(self._fresh, list(map(str, sys.argv)), started.lacks(self._env))
                started.channel.send(setup, (log.fileno(),))
            except ConnectionLost:
                self._kill_keeper()  # it is gone already, or does not read; wait() will say so
            except BaseException:
                started.end()
                raise
        return started.channel

    def start_cell(self, device: str | None = None) -> Cell:
        with descriptors.in_words("A cell"):
            ours, theirs = socket.socketpair()
        self.made += 1
        cell = Cell(self.made, Channel(ours, SEND_PATIENCE), device)
        self.cells[cell.number] = cell
        env = {"CUDA_VISIBLE_DEVICES": device} if device is not None else {}
        with theirs:
            self._tell_keeper(StartCell(cell.number, env), theirs.fileno())
        self._selector.register(cell.channel, selectors.EVENT_READ, cell)
        return cell

    def _open_log(self) -> IO[bytes]:
        """Keepers write little. A log that has grown all the same begins anew."""
        long = self._log.exists() and self._log.stat().st_size > _LONG_LOG
        return open_private(self._log, "wb" if long else "ab")

    def give(self, cell: Cell, task: Task, log: Path) -> None:
        """Send a cell its task; its output goes to `log` from here on."""
        with descriptors.in_words("A trial"):
            reader, writer = os.pipe()
        try:
            self._tell_keeper(CaptureLog(cell.number, str(log)), reader)
            with contextlib.suppress(ConnectionLost):  # its death will be heard of
                cell.channel.send(task, (writer,))
        finally:
            os.close(reader)
            os.close(writer)
        cell.trials += 1

    def send(self, cell: Cell, message: Message) -> None:
        try:
            cell.channel.send(message)
        except ConnectionLost:  # it is gone, or does not read and holds half a message: no use
            self.signal(cell, KILL)

    def hang_up(self, cell: Cell) -> None:
        """Nothing more will be sent: a cell that waits for work ends."""
        with contextlib.suppress(OSError):
            cell.channel.sock.shutdown(socket.SHUT_WR)

    def signal(self, cell: Cell, signum: int, *, group: bool = True) -> None:
        self._tell_keeper(SignalCell(cell.number, int(signum), group))
        cell.kills += signum == KILL
        if cell.kills > _MOST_KILLS:  # the keeper does not do its work: stopped, or stuck
            self._kill_keeper()

    def wake(self) -> None:
        """Make wait() return; may be called from a signal handler, also when all is closed."""
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"!")

    def _tell_keeper(self, message: Message, *fds: int) -> None:
        if self._control is None:
            return
        try:
            self._control.send(message, fds)
        except ConnectionLost:
            self._kill_keeper()  # it is gone already, or does not read; wait() will say so

    def _kill_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()

    # Hearing.

    def wait(self, timeout: float | None) -> list[FleetEvent]:
        """Block until something happens or `timeout` passes; then all that happened."""
        events: list[FleetEvent] = []
        exits: list[FleetEvent] = []
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            elif key.fileobj is self._control:
                exits += self._hear_keeper()
            else:
                events += self._hear(key.data)
        # A cell's last words were sent before it ended: they come first.
        for event in exits:
            if isinstance(event, CellGone):
                events += self._hear(event.cell)
                self._forget(event.cell)
            elif isinstance(event, KeeperGone):
                for cell in event.cells:
                    events += self._hear(cell)
                    self._forget(cell)
        return events + exits

    def _hear(self, cell: Cell) -> Iterator[FleetEvent]:
        try:
            for message in cell.channel.waiting():
                if isinstance(message, Ready):
                    cell.ready = True
                    cell.pid = cell.pid or message.pid  # the keeper's word may come later
                    yield CellReady(cell)
                else:
                    yield Heard(cell, message)
        except Exception:  # the end, or bytes that are no message: whatever a cell can send
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(cell.channel)
                yield CellMute(cell)

    def _hear_keeper(self) -> list[FleetEvent]:
        assert self._control is not None
        events: list[FleetEvent] = []
        try:
            for message in self._control.waiting():
                match message:
                    case Loaded(why_not):
                        self._loaded = True
                        events.append(ObjectiveLoaded(why_not))
                    case LoadFailed(error, traceback):
                        events.append(ObjectiveBroken(error, traceback))
                    case Started(number, pid) if number in self.cells:
                        self.cells[number].pid = pid
                    case Exited(number) if number in self.cells:
                        events.append(CellGone(self.cells.pop(number), message))
        except ConnectionLost:
            events.append(self._lose_keeper())
        return events

    def _lose_keeper(self) -> KeeperGone:
        """Make sure that nothing of it is left before anybody goes on."""
        assert self._control is not None
        assert self._keeper is not None
        self._selector.unregister(self._control)
        self._control.close()
        self._control = None
        self._keeper.kill()
        self._keeper.wait()
        kernel.sweep(self._tag)
        lost = tuple(self.cells.values())
        self.cells.clear()
        return KeeperGone(lost)

    def _forget(self, cell: Cell) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(cell.channel)
        cell.channel.close()

    def let_go(self) -> None:
        """In a forked copy of this process: close everything, end nothing."""
        for channel in [cell.channel for cell in self.cells.values()] + [self._control]:
            if channel is not None:
                channel.close()
        if self._wake_r >= 0:
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._selector.close()

    def close(self) -> None:
        """End everything: the keeper kills its cells and their kin when its socket closes."""
        for cell in self.cells.values():
            self._forget(cell)
        self.cells.clear()
        if self._control is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        if self._keeper is not None:
            if not self._loaded:  # busy with the user's imports; there is no cell yet to end
                self._keeper.kill()
            try:
                self._keeper.wait(_CLOSING)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
        _open.discard(self)
        if self._wake_r >= 0:
            self._selector.close()
            pipe, self._wake_r, self._wake_w = (self._wake_r, self._wake_w), -1, -1
            for fd in pipe:
                os.close(fd)
            kernel.sweep(self._tag)


# A process that the user's program forks must not keep the connections open when the program is
# gone: the keeper ends everything when it sees the end of its socket.
_open: weakref.WeakSet[Fleet] = weakref.WeakSet()


def _let_go() -> None:
    for fleet in list(_open):
        fleet.let_go()


os.register_at_fork(after_in_child=_let_go)
