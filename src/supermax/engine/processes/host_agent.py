"""Agent of a run on another machine: it starts a fork server there and relays messages.

    coordinator ◀── one TCP connection (link.py) ──▶ agent ◀── Unix sockets ──▶ fork server, cells

It decodes what the fork server says, not what cells say: only the coordinator unpickles that. It
ends, and all processes with it, when the connection to the coordinator is lost.
"""

from __future__ import annotations

import contextlib
import os
import platform
import selectors
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supermax._util.scratch import scratch_folder
from supermax._util.threads import brief_spinning
from supermax.engine.processes import prestart
from supermax.engine.processes.link import HOST, Hello, Link
from supermax.engine.processes.prestart import SEND_TIMEOUT, TAG
from supermax.engine.processes.protocol import (
    CaptureLog,
    CloseCell,
    ConnectionLost,
    Disconnected,
    Exited,
    HostFailed,
    Lines,
    Message,
    Setup,
    SignalCell,
    StartCell,
    decode_message,
)
from supermax.engine.storage.logs import tail_of

_CONNECT_TIMEOUT = 30.0  # seconds
_CLOSE_TIMEOUT = 15.0  # seconds
_OF_THE_NODE = ("RAY_", "CUDA_VISIBLE_DEVICES")
"""Variables that are not taken from the coordinator, by their beginning."""


@dataclass(frozen=True)
class Assignment:
    """Task of an agent; it travels to the other machine as a pickle."""

    host: int
    """Number of the host in its run."""
    address: tuple[str, int]
    """Address of the coordinator."""
    secret: str
    tag: str
    """Value of the environment variable that marks its processes."""
    threads: int
    """Number of threads that a cell may use."""
    fresh: bool
    """True: a new cell for every trial."""
    argv: tuple[str, ...]
    path: tuple[str, ...]
    """sys.path of the coordinator."""
    folder: str
    """Working directory of the coordinator."""
    env: Mapping[str, str]
    """Environment of the coordinator; the agent takes from it what its machine has not set."""
    run_dir: str
    marker: str
    """Name of a file in the run folder by which the agent recognises it."""


def run_agent(assignment: Assignment, objective: bytes) -> None:
    """Serve a run until its coordinator closes the connection."""
    sys.path += [entry for entry in assignment.path if entry not in sys.path]
    with contextlib.suppress(OSError):  # not on this machine
        os.chdir(assignment.folder)
    with scratch_folder("host") as scratch:
        _Agent(assignment, objective, scratch).run()


class _Agent:
    """Relay between the coordinator, the fork server and its cells."""

    def __init__(self, assignment: Assignment, objective: bytes, scratch: Path) -> None:
        self._assignment = assignment
        self._scratch = scratch
        self._log = scratch / "fork_server.log"
        self._cells: dict[int, Lines] = {}
        self._outputs: dict[int, int] = {}
        """Write ends of output pipes that go to cells with their next message."""
        self._selector = selectors.DefaultSelector()
        self._link = Link(socket.create_connection(assignment.address, _CONNECT_TIMEOUT))
        self._link.sock.settimeout(None)
        env = _environment(assignment)
        with self._log.open("ab") as log:
            self._fork_server = prestart.start(env, log)
            self._fork_server.write(objective)
            setup = Setup(assignment.fresh, list(assignment.argv), {})
            self._fork_server.channel.send(setup, (log.fileno(),))

    def run(self) -> None:
        control = self._fork_server.channel
        self._selector.register(self._link, selectors.EVENT_READ)
        self._selector.register(control, selectors.EVENT_READ)
        try:
            self._link.send_line(self._hello().line())
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._link:
                        self._obey()
                    elif key.fileobj is control:
                        self._report()
                    else:
                        self._relay(key.data)
        except ConnectionLost:
            pass  # the coordinator is gone
        finally:
            self._end()

    def _hello(self) -> Hello:
        assignment = self._assignment
        shared = Path(assignment.run_dir, assignment.marker).exists()
        scratch = str(self._scratch)
        return Hello(assignment.host, assignment.secret, platform.node(), scratch, shared)

    def _obey(self) -> None:
        """Pass on what the coordinator sends."""
        for number, line in self._link.pending():
            if number != HOST:
                self._send_to_cell(number, line)
                continue
            match message := decode_message(line):
                case StartCell(cell):
                    ours, theirs = socket.socketpair()
                    self._cells[cell] = Lines(ours, SEND_TIMEOUT)
                    self._selector.register(ours, selectors.EVENT_READ, cell)
                    with theirs:
                        self._control(message, theirs.fileno())
                case CaptureLog(cell):
                    reader, self._outputs[cell] = os.pipe()
                    self._control(message, reader)
                    os.close(reader)
                case CloseCell(cell):
                    with contextlib.suppress(OSError, KeyError):
                        self._cells[cell].sock.shutdown(socket.SHUT_WR)
                case _:
                    self._control(message)

    def _control(self, message: Message, *fds: int) -> None:
        with contextlib.suppress(ConnectionLost):  # _report() notices it
            self._fork_server.channel.send(message, fds)

    def _send_to_cell(self, cell: int, line: bytes) -> None:
        output = self._outputs.pop(cell, None)
        try:
            if cell in self._cells:  # else it has exited
                self._cells[cell].send_line(line + b"\n", () if output is None else (output,))
        except ConnectionLost:  # it is dead, or does not read
            self._control(SignalCell(cell, 9))
        finally:
            if output is not None:
                os.close(output)

    def _report(self) -> None:
        """Pass on what the fork server says. What a cell said before it exited comes first."""
        messages: list[Message] = []
        lost = None
        try:
            messages += self._fork_server.channel.pending()
        except ConnectionLost as error:
            lost = error
        for message in messages:
            if isinstance(message, Exited) and message.cell in self._cells:
                self._relay(message.cell)
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(self._cells[message.cell].sock)
                self._cells.pop(message.cell).close()
            self._link.send(HOST, message)
        if lost is not None:
            self._link.send(HOST, HostFailed(tail_of(self._log)))
            raise lost

    def _relay(self, cell: int) -> None:
        """Pass on what a cell says."""
        lines = self._cells[cell]
        received: list[bytes] = []
        lost = False
        try:
            received += lines.pending_lines()
        except ConnectionLost:
            lost = True
        for line in received:
            self._link.relay(cell, line + b"\n")
        if lost:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(lines.sock)
                self._link.send(HOST, Disconnected(cell))

    def _end(self) -> None:
        """End all processes: the fork server kills its cells when its socket closes."""
        self._link.close()
        for lines in self._cells.values():
            lines.close()
        self._fork_server.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._fork_server.process.wait(_CLOSE_TIMEOUT)
        self._fork_server.end()
        self._selector.close()


def _environment(assignment: Assignment) -> dict[str, str]:
    carried = {k: v for k, v in assignment.env.items() if not k.startswith(_OF_THE_NODE)}
    limits = prestart.thread_variables(assignment.threads)
    own = {**carried, **os.environ}
    return {**own, **brief_spinning(own), **limits, TAG: assignment.tag}
