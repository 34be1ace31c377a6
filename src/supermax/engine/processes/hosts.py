"""Cells on several machines: an agent on each runs a fork server and its cells.

    HostProcesses ──Launcher.start()──▶ agent on a machine ──TCP──▶ HostProcesses

A host that is lost is replaced; where the next one runs is up to the launcher.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import secrets
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from supermax._util.text import counted
from supermax.engine.processes import descriptors
from supermax.engine.processes.executor import (
    Cell,
    CellDisconnected,
    CellExited,
    CellReady,
    HostLost,
    HostReady,
    MessageReceived,
    ProcessEvent,
    close_in_forks,
    exit_of_killed,
)
from supermax.engine.processes.host_agent import Assignment
from supermax.engine.processes.host_listener import HostListener
from supermax.engine.processes.launcher import Launcher
from supermax.engine.processes.link import HOST, Hello, Link
from supermax.engine.processes.protocol import (
    CaptureLog,
    CloseCell,
    ConnectionLost,
    Disconnected,
    Exited,
    Finished,
    HostFailed,
    LoadFailed,
    Message,
    ObjectiveLoaded,
    Output,
    Ready,
    SignalCell,
    StartCell,
    Started,
    Task,
    decode_message,
    encode_message,
)
from supermax.engine.storage.logs import BoundedLog
from supermax.engine.storage.patience import Wait
from supermax.errors import EnvironmentFault, UserError

_MARKER = "hosts-"
_CHECK_INTERVAL = 1.0  # seconds between two questions to the launcher about ended agents
_CLOSE_TIMEOUT = 20.0  # seconds for the agents to end their processes
_NOTICE_AFTER, _NOTICE_INTERVAL = 20.0, 600.0  # seconds without a host until a notice
_REASON_TIMEOUT = 3.0  # seconds for the launcher to say why a connection was lost
_REASON_INTERVAL = 0.1  # seconds between two questions to it meanwhile
_LONGEST_BACK_OFF = 60.0  # seconds
_MAX_LOSSES = 20  # hosts lost in a row, without a trial finished between them
_MAX_LOSSES_LOADING = 3  # before the first load: more likely caused by the objective


@dataclass
class _Host:
    """Agent that has said Hello."""

    link: Link
    hello: Hello
    cells: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    """Numbers of cells that were sent a task."""
    lost: bool = False

    @property
    def name(self) -> str:
        return f"{self.hello.node}#{self.hello.host}"


@dataclass(frozen=True)
class _Loss:
    """Host that is gone."""

    host: _Host | None
    """None: its agent had not said Hello."""
    why: str
    out_of_memory: bool = False
    explained_by: float = 0.0
    """Moment until which the launcher may still give another reason."""


class HostProcesses:
    """Executor whose cells run on several machines. `share`: every host must see the run folder,
    because trials leave files there that later commands read."""

    def __init__(
        self,
        launcher: Launcher,
        objective: bytes,
        *,
        fresh: bool,
        run_dir: Path,
        share: bool,
        emit: Callable[[str], None],
    ) -> None:
        self.load_timeout = math.inf  # there may be no room for a host yet
        self.cells: dict[int, Cell] = {}
        self.cells_started = 0
        self._launcher = launcher
        self._objective = objective
        self._fresh, self._run_dir, self._share = fresh, run_dir, share
        self._marker = f"{_MARKER}{secrets.token_hex(8)}"
        self._started = 0  # number of hosts started so far
        self._hosts: dict[str, _Host] = {}  # by name
        self._logs: dict[str, BoundedLog] = {}  # of trials whose output arrives here, by path
        self._paths: dict[int, str] = {}  # number of cell → log of its last task
        self._lost: dict[int, _Loss] = {}  # by number of the host
        self._retired: set[str] = set()  # machines out of service
        self._events: list[ProcessEvent] = []  # that the next wait() returns
        self._failed_starts = 0  # of agents that ended without a Hello, while there were hosts
        self._start_at: list[float] = []  # moments at which their replacements start
        self._losses = 0
        self._ever_ready = False
        self._next_check = 0.0
        self._emit, self._notice_at = emit, math.inf
        self._selector = selectors.DefaultSelector()
        with descriptors.describe_limit("The run"):
            self._wake_r, self._wake_w = descriptors.nonblocking_pipe()
            self._listener = HostListener(launcher.address, self._selector)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        close_in_forks(self)

    def start(self, patience: Wait | None = None) -> None:
        self._notice_at = time.monotonic() + _NOTICE_AFTER
        for left in self._run_dir.glob(f"{_MARKER}*"):  # of a run that was killed
            left.unlink(missing_ok=True)
        (self._run_dir / self._marker).touch()
        for _ in range(self._launcher.hosts):
            self._start_host()

    def _start_host(self) -> None:
        self._started += 1
        assignment = Assignment(
            host=self._started,
            address=self._listener.address,
            secret=self._listener.secret,
            tag=secrets.token_hex(16),
            threads=self._launcher.threads,
            fresh=self._fresh,
            argv=tuple(map(str, sys.argv)),
            path=tuple(os.fspath(entry) for entry in sys.path),
            folder=_working_directory(),
            env=dict(os.environ),
            run_dir=str(self._run_dir),
            marker=self._marker,
        )
        self._launcher.start(assignment, self._objective)

    def start_cell(self, device: str | None) -> Cell:
        host = self._hosts[device or ""]
        self.cells_started += 1
        cell = Cell(self.cells_started, device, machine=host.hello.node)
        self.cells[cell.number] = cell
        host.cells.add(cell.number)
        self._send(host, HOST, StartCell(cell.number, {}))
        return cell

    def send_task(self, cell: Cell, task: Task, log: Path) -> None:
        cell.trials += 1
        host = self._hosts.get(cell.device or "")
        if host is None or host.lost:
            return
        self._close_log(cell)
        host.running.add(cell.number)
        self._paths[cell.number] = str(log)
        away = not host.hello.shares_run_dir
        if away:
            folder = Path(host.hello.scratch, "trials", Path(task.folder).name)
            task = replace(task, folder=str(folder), away=True)
        self._send(host, HOST, CaptureLog(cell.number, str(log), send=away))
        self._send(host, cell.number, task)

    def send(self, cell: Cell, message: Message) -> None:
        if (host := self._hosts.get(cell.device or "")) is not None:
            self._send(host, cell.number, message)

    def has_pending(self, cell: Cell) -> bool:
        host = self._hosts.get(cell.device or "")
        return host is not None and not host.lost and host.link.has_pending()

    def close_sending_side(self, cell: Cell) -> None:
        self._send_to_host_of(cell, CloseCell(cell.number))

    def signal(self, cell: Cell, signum: int, *, group: bool = True) -> None:
        self._send_to_host_of(cell, SignalCell(cell.number, int(signum), group))

    def _send_to_host_of(self, cell: Cell, message: Message) -> None:
        if (host := self._hosts.get(cell.device or "")) is not None:
            self._send(host, HOST, message)

    def _send(self, host: _Host, number: int, message: Message) -> None:
        try:
            host.link.relay(number, encode_message(message))
        except ConnectionLost:
            self._lose_connection(host)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"!")

    def wait(self, timeout: float | None) -> list[ProcessEvent]:
        limit = _REASON_INTERVAL if self._lost else _CHECK_INTERVAL
        limit = 0.0 if self._events else limit
        events, self._events = self._events, []
        for key, _ in self._selector.select(limit if timeout is None else min(timeout, limit)):
            if key.fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            elif key.fileobj is self._listener.socket:
                self._listener.accept()
            elif isinstance(key.data, _Host):
                events += self._receive(key.data)
            else:
                events += self._identify(key.data)
        self._check_agents()
        return events + list(self._losses_so_far())

    # Hosts that come.

    def _identify(self, link: Link) -> list[ProcessEvent]:
        """Read the Hello of a new connection, and what follows it."""
        if (hello := self._listener.identify(link)) is None:
            return []
        if self._share and not hello.shares_run_dir:
            link.close()
            raise UserError(
                f"The machine {hello.node} does not see the run folder {self._run_dir}. Put it on "
                f"a disk that all machines share (--run-dir)."
            )
        if hello.node in self._retired:  # it was placed there before
            link.close()
            self._replace(hello.host)
            return []
        host = _Host(link, hello)
        self._hosts[host.name] = host
        self._selector.register(link, selectors.EVENT_READ, host)
        return self._receive(host)  # lines that have been read already wake no selector

    # Messages.

    def _receive(self, host: _Host) -> list[ProcessEvent]:
        received: list[tuple[int, bytes]] = []
        lost = False
        try:
            received += host.link.pending()
        except (ConnectionLost, ValueError):
            lost = True
        events: list[ProcessEvent] = []
        for number, line in received:
            if number == HOST:
                events += self._from_host(host, decode_message(line))
            elif (cell := self.cells.get(number)) is not None:
                events.append(self._from_cell(cell, line))
        if lost:
            self._lose_connection(host)
        return events

    def _from_cell(self, cell: Cell, line: bytes) -> ProcessEvent:
        try:
            message = decode_message(line)
        except Exception:  # any bytes that do not decode as a message
            return CellDisconnected(cell)
        if isinstance(message, Ready):
            cell.ready = True
            cell.pid = cell.pid or message.pid
            return CellReady(cell)
        if isinstance(message, Finished):
            self._losses = 0
        return MessageReceived(cell, message)

    def _from_host(self, host: _Host, message: Message) -> Iterator[ProcessEvent]:
        match message:
            case ObjectiveLoaded(why_not_fork):
                self._ever_ready = True
                yield HostReady(host.name, why_not_fork)
            case LoadFailed():
                yield message
            case Started(number, pid) if number in self.cells:
                self.cells[number].pid = pid
            case Disconnected(number) if number in self.cells:
                yield CellDisconnected(self.cells[number])
            case Exited(number) if number in self.cells:
                host.cells.discard(number)
                self._close_log(self.cells[number])
                yield CellExited(self.cells.pop(number), message)
            case Output(path, data):
                log = self._logs.setdefault(path, BoundedLog(Path(path)))
                log.write(base64.b64decode(data))
            case HostFailed(log):
                why = f"its fork server died; the log ends with: {log[-1500:]}"
                self._lose(host.hello.host, _Loss(host, why))

    def _close_log(self, cell: Cell) -> None:
        if (log := self._logs.pop(self._paths.pop(cell.number, ""), None)) is not None:
            log.close()

    # Hosts that go.

    def _lose_connection(self, host: _Host) -> None:
        """Lose a host; the launcher has some time to say why."""
        loss = _Loss(
            host, "its connection was lost", explained_by=time.monotonic() + _REASON_TIMEOUT
        )
        self._lose(host.hello.host, loss)

    def _lose(self, number: int, loss: _Loss) -> None:
        """Close the connection to a host; wait() returns the event."""
        if loss.host is not None:
            self._disconnect(loss.host)
        before = self._lost.get(number)
        if before is None or before.explained_by:
            self._lost[number] = loss

    def _disconnect(self, host: _Host) -> None:
        if not host.lost:
            host.lost = True
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(host.link)
            host.link.close()

    def retire_machine(self, machine: str, why: str) -> None:
        self._retired.add(machine)
        self._launcher.avoid(machine)
        cells: list[Cell] = []
        for host in [host for host in self._hosts.values() if host.hello.node == machine]:
            self._disconnect(host)
            self._lost.pop(host.hello.host, None)
            self._replace(host.hello.host)
            cells += self._forget(host)
        self._events.append(HostLost(machine, tuple(cells), why))

    def _replace(self, number: int) -> None:
        """End an agent and start another one in its place."""
        self._launcher.end(number)
        self._start_host()

    def _replace_later(self, number: int, why: str) -> None:
        """Have an agent that did not start replaced after a pause, while others run trials."""
        self._launcher.end(number)
        if not self._failed_starts:
            self._emit(f"A worker did not start: {why}. The run continues with the others.")
        self._failed_starts += 1
        pause = min(2.0**self._failed_starts, _LONGEST_BACK_OFF)
        self._start_at.append(time.monotonic() + pause)

    def _forget(self, host: _Host) -> list[Cell]:
        """Forget a host and its cells, which are returned."""
        del self._hosts[host.name]
        cells = [self.cells.pop(number) for number in sorted(host.cells)]
        for cell in cells:
            self._close_log(cell)
        return cells

    def _check_agents(self) -> None:
        now = time.monotonic()
        if now < self._next_check and not self._lost:
            return
        self._next_check = now + _CHECK_INTERVAL
        if not self._hosts and now > self._notice_at:
            self._notice_at = now + _NOTICE_INTERVAL
            self._emit(self._launcher.waiting())
        self._listener.close_silent(now)
        for due in [due for due in self._start_at if due <= now]:
            self._start_at.remove(due)
            self._start_host()
        by_number = {host.hello.host: host for host in self._hosts.values()}
        for ended in self._launcher.ended():
            loss = _Loss(by_number.get(ended.host), ended.why, ended.out_of_memory)
            self._lose(ended.host, loss)

    def _losses_so_far(self) -> Iterator[ProcessEvent]:
        """Yield the hosts that were lost, and have others started in their place."""
        now = time.monotonic()
        for number, loss in list(self._lost.items()):
            if loss.explained_by > now:
                continue
            del self._lost[number]
            if loss.host is None and self._hosts:  # on a machine without the package, say
                self._replace_later(number, loss.why)
                continue
            self._count_loss(loss.why)
            self._replace(number)
            if loss.host is not None:
                yield from self._without(loss.host, loss)

    def _count_loss(self, why: str) -> None:
        """Raise EnvironmentFault if hosts are lost again and again."""
        self._losses += 1
        hosts = self._launcher.hosts  # all of them may be lost at once
        most = _MAX_LOSSES + hosts if self._ever_ready else max(_MAX_LOSSES_LOADING, hosts)
        if self._losses >= most:
            when = "in a row" if self._ever_ready else "while it loaded the objective"
            raise EnvironmentFault(
                f"A worker died {counted(self._losses, 'time')} {when}. The last one: {why}. "
                f"All machines need the same Python, Supermax and packages of the objective."
            )

    def _without(self, host: _Host, loss: _Loss) -> Iterator[ProcessEvent]:
        """Forget a host and its cells; yield their ends."""
        cells = self._forget(host)
        killed = [cell for cell in cells if loss.out_of_memory and cell.number in host.running]
        for cell in killed:
            yield CellExited(cell, replace(exit_of_killed(cell), oom_kills=1))
        yield HostLost(host.name, tuple(c for c in cells if c not in killed), loss.why)

    def close_in_child(self) -> None:
        for host in self._hosts.values():
            host.link.close()
        if self._wake_r >= 0:
            self._listener.close()
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._selector.close()

    def close(self) -> None:
        connected = {host.hello.host for host in self._hosts.values() if not host.lost}
        for host in self._hosts.values():
            host.link.close()
        self._hosts.clear()
        self.cells.clear()
        if self._wake_r >= 0:
            self._listener.close()
            self._launcher.close(connected, _CLOSE_TIMEOUT)
            self._selector.close()
            pipe, self._wake_r, self._wake_w = (self._wake_r, self._wake_w), -1, -1
            for fd in pipe:
                os.close(fd)
            (self._run_dir / self._marker).unlink(missing_ok=True)


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it is gone
        return "/"
