"""Process and socket handles of the coordinator: the fork server and its cells.

    start_cell, send_task, signal ──▶ Processes ──▶ fork server and cells
    MessageReceived, CellReady, CellExited, ForkServerDied ◀── wait() ◀── one selector, all sockets

close() blocks until the fork server has ended every process.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from supermax._util import system
from supermax._util.files import open_private
from supermax.engine.processes import descriptors, prestart
from supermax.engine.processes.executor import (
    KILL,
    Cell,
    CellDisconnected,
    CellExited,
    CellReady,
    ForkServerDied,
    MessageReceived,
    ProcessEvent,
    close_in_forks,
)
from supermax.engine.processes.prestart import SEND_TIMEOUT, TAG, thread_limits
from supermax.engine.processes.protocol import (
    CaptureLog,
    Channel,
    ConnectionLost,
    Exited,
    LoadFailed,
    Message,
    ObjectiveLoaded,
    Ready,
    Setup,
    SignalCell,
    StartCell,
    Started,
    Task,
)
from supermax.engine.storage.patience import Wait

_MAX_KILLS = 10  # SIGKILLs sent to one cell before the fork server counts as stuck
_CLOSE_TIMEOUT = 15.0  # seconds
_LOAD_TIMEOUT = 900.0  # seconds to import the objective's modules
_MAX_LOG = 1 << 20  # bytes


class Processes:
    """Fork server and cells of a run.

    `identity` tags every process of the run in its environment, so that processes left by a
    killed run can be found. `fresh`: a new cell for every trial.
    """

    def __init__(self, objective: bytes, *, identity: str, workers: int, fresh: bool, log: Path):
        self.load_timeout = _LOAD_TIMEOUT
        self.cells: dict[int, Cell] = {}
        self.cells_started = 0
        self._channels: dict[int, Channel] = {}  # by number of cell
        self._objective = objective
        self._fresh = fresh
        self._log = log
        self._tag = f"{TAG}={identity}"
        self._env = {**os.environ, **thread_limits(workers, os.environ), TAG: identity}
        self._selector = selectors.DefaultSelector()
        with descriptors.describe_limit("The run"):
            self._wake_r, self._wake_w = descriptors.nonblocking_pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._loaded = False
        self._control: Channel | None = None
        close_in_forks(self)

    def start(self, patience: Wait | None = None) -> None:
        while True:
            try:
                self._control = self._start_fork_server()
                break
            except OSError as error:
                if patience is None:
                    raise descriptors.fault("The fork server", error) from error
                patience.pause(error.strerror or str(error))
        self._loaded = False
        self._selector.register(self._control, selectors.EVENT_READ)

    def _start_fork_server(self) -> Channel:
        with self._open_log() as log:
            started = prestart.take(self._env) or prestart.start(self._env, log)
            self._fork_server = started.process
            try:
                started.write(self._objective)
                setup = Setup(self._fresh, list(map(str, sys.argv)), started.lacks(self._env))
                started.channel.send(setup, (log.fileno(),))
            except ConnectionLost:
                self._kill_fork_server()  # dead or not reading; wait() returns ForkServerDied
            except BaseException:
                started.end()
                raise
        return started.channel

    def start_cell(self, device: str | None) -> Cell:
        with descriptors.describe_limit("A cell"):
            ours, theirs = socket.socketpair()
        self.cells_started += 1
        cell = Cell(self.cells_started, device)
        self.cells[cell.number] = cell
        self._channels[cell.number] = channel = Channel(ours, SEND_TIMEOUT)
        env = {"CUDA_VISIBLE_DEVICES": device} if device is not None else {}
        with theirs:
            self._send_to_fork_server(StartCell(cell.number, env), theirs.fileno())
        self._selector.register(channel, selectors.EVENT_READ, cell)
        return cell

    def _open_log(self) -> IO[bytes]:
        """Open the fork server's log for appending; truncate it once it exceeds _MAX_LOG."""
        too_long = self._log.exists() and self._log.stat().st_size > _MAX_LOG
        return open_private(self._log, "wb" if too_long else "ab")

    def send_task(self, cell: Cell, task: Task, log: Path) -> None:
        with descriptors.describe_limit("A trial"):
            reader, writer = os.pipe()
        try:
            self._send_to_fork_server(CaptureLog(cell.number, str(log)), reader)
            with contextlib.suppress(ConnectionLost, KeyError):  # wait() returns CellExited
                self._channels[cell.number].send(task, (writer,))
        finally:
            os.close(reader)
            os.close(writer)
        cell.trials += 1
        cell.oom_kills_before = system.oom_kills()

    def send(self, cell: Cell, message: Message) -> None:
        try:
            if (channel := self._channels.get(cell.number)) is not None:  # else it has exited
                channel.send(message)
        except ConnectionLost:  # dead, or it stopped reading in the middle of a message
            self.signal(cell, KILL)

    def has_pending(self, cell: Cell) -> bool:
        channel = self._channels.get(cell.number)
        return channel is not None and channel.has_pending()

    def close_sending_side(self, cell: Cell) -> None:
        with contextlib.suppress(OSError, KeyError):
            self._channels[cell.number].sock.shutdown(socket.SHUT_WR)

    def signal(self, cell: Cell, signum: int, *, group: bool = True) -> None:
        self._send_to_fork_server(SignalCell(cell.number, int(signum), group))
        cell.kills += signum == KILL
        if cell.kills > _MAX_KILLS:  # the fork server does not deliver them: stopped or stuck
            self._kill_fork_server()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"!")

    def _send_to_fork_server(self, message: Message, *fds: int) -> None:
        if self._control is None:
            return
        try:
            self._control.send(message, fds)
        except ConnectionLost:
            self._kill_fork_server()  # dead or not reading; wait() returns ForkServerDied

    def _kill_fork_server(self) -> None:
        if self._fork_server is not None:
            self._fork_server.kill()

    def wait(self, timeout: float | None) -> list[ProcessEvent]:
        events: list[ProcessEvent] = []
        exits: list[ProcessEvent] = []
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            elif key.fileobj is self._control:
                exits += self._receive_from_fork_server()
            else:
                events += self._receive_from(key.data)
        # A cell sent its last messages before it exited: return them before its exit.
        for event in exits:
            if isinstance(event, CellExited):
                events += self._receive_from(event.cell)
                self._unregister(event.cell)
            elif isinstance(event, ForkServerDied):
                for cell in event.cells:
                    events += self._receive_from(cell)
                    self._unregister(cell)
        return events + exits

    def _receive_from(self, cell: Cell) -> Iterator[ProcessEvent]:
        channel = self._channels[cell.number]
        try:
            for message in channel.pending():
                if isinstance(message, Ready):
                    cell.ready = True
                    # Started may arrive later, on the other socket.
                    cell.pid = cell.pid or message.pid
                    yield CellReady(cell)
                else:
                    yield MessageReceived(cell, message)
        except Exception:  # end of file, or any bytes that do not decode as a message
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(channel)
                yield CellDisconnected(cell)

    def _receive_from_fork_server(self) -> list[ProcessEvent]:
        assert self._control is not None
        events: list[ProcessEvent] = []
        try:
            for message in self._control.pending():
                match message:
                    case ObjectiveLoaded() | LoadFailed():
                        self._loaded = isinstance(message, ObjectiveLoaded)
                        events.append(message)
                    case Started(number, pid) if number in self.cells:
                        self.cells[number].pid = pid
                    case Exited(number) if number in self.cells:
                        events.append(CellExited(self.cells.pop(number), message))
        except ConnectionLost:
            events.append(self._handle_fork_server_end())
        return events

    def _handle_fork_server_end(self) -> ForkServerDied:
        """Kill every process of the lost fork server before the run continues."""
        assert self._control is not None
        assert self._fork_server is not None
        self._selector.unregister(self._control)
        self._control.close()
        self._control = None
        self._fork_server.kill()
        self._fork_server.wait()
        system.kill_tagged(self._tag)
        lost = tuple(self.cells.values())
        self.cells.clear()
        return ForkServerDied(lost)

    def _unregister(self, cell: Cell) -> None:
        channel = self._channels.pop(cell.number)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel)
        channel.close()

    def close_in_child(self) -> None:
        for channel in (*self._channels.values(), self._control):
            if channel is not None:
                channel.close()
        if self._wake_r >= 0:
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._selector.close()

    def retire_machine(self, machine: str, why: str) -> None:
        pass  # there is only this one

    def close(self) -> None:
        """End all processes: the fork server kills its cells and their descendants when its socket
        closes."""
        for cell in self.cells.values():
            self._unregister(cell)
        self.cells.clear()
        if self._control is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        if self._fork_server is not None:
            if not self._loaded:  # still importing: it cannot react, and has no cells yet
                self._fork_server.kill()
            try:
                self._fork_server.wait(_CLOSE_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._fork_server.kill()
                self._fork_server.wait()
        if self._wake_r >= 0:
            self._selector.close()
            pipe, self._wake_r, self._wake_w = (self._wake_r, self._wake_w), -1, -1
            for fd in pipe:
                os.close(fd)
            system.kill_tagged(self._tag)
