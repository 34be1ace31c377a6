"""The messages between coordinator, keeper and cells, and how they travel.

One message is one line of JSON on a stream socket; file descriptors may ride along. What JSON
cannot carry faithfully (trials for study views, choices that are objects) is pickled into it:
both ends are the same installation, started by the same user.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle

RECORD = "supermax"  # the one user attribute that is Supermax's own
_CHUNK = 1 << 16
_MOST_FDS = 4
_MOST_READS = 64
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_PICKLED = "$pickle"


# Coordinator to keeper ---------------------------------------------------------------------


@dataclass(frozen=True)
class Preload:
    """Import `module` and call its function preload() with `arguments`; Setup comes later."""

    module: str
    arguments: list[str]


@dataclass(frozen=True)
class Setup:
    """Comes with the descriptor of the log."""

    fresh: bool  # one trial a cell
    argv: list[str]  # of the user's program, which objectives may read
    env: dict[str, str]  # variables that were not known when the process was started


@dataclass(frozen=True)
class StartCell:
    """Comes with the cell's end of its socket."""

    cell: int
    env: dict[str, str]


@dataclass(frozen=True)
class CaptureLog:
    """Comes with the reading end of a trial's output pipe."""

    cell: int
    path: str


@dataclass(frozen=True)
class SignalCell:
    cell: int
    signum: int
    group: bool = True


# Keeper to coordinator ---------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """The objective is loaded."""

    why_not_fork: str | None


@dataclass(frozen=True)
class LoadFailed:
    error: str
    traceback: str


@dataclass(frozen=True)
class Started:
    cell: int
    pid: int


@dataclass(frozen=True)
class Exited:
    cell: int
    code: int | None
    signum: int | None
    max_rss: int
    strays: int  # descendants that had to be ended after it


# Cell to coordinator -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    pid: int


@dataclass(frozen=True)
class Suggest:
    name: str
    distribution: Any


@dataclass(frozen=True)
class ShouldPrune:
    pass


@dataclass(frozen=True)
class RelativeParams:
    pass


@dataclass(frozen=True)
class Look:
    """A read of the study: a storage method of the allowed list, or the sampler or pruner."""

    what: str
    args: list[Any]


@dataclass(frozen=True)
class Report:
    step: int
    value: float
    written: bool = True  # the line in the trial's folder


@dataclass(frozen=True)
class Note:
    """How the trial is doing, for people who watch. Nobody answers."""

    facts: dict[str, Any]


@dataclass(frozen=True)
class Attribute:
    key: str
    value: Any
    system: bool


@dataclass(frozen=True)
class StopStudy:
    pass


@dataclass(frozen=True)
class Finished:
    """The objective is through. Unless it was interrupted, the outcome is on disk already, or
    the coordinator has to write it."""

    outcome: dict[str, Any]
    unclean: str | None  # why this cell should not serve another trial
    written: bool = True


# Coordinator to cell -----------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Comes with the writing end of the trial's output pipe."""

    folder: str
    attempt: int
    study_name: str
    study_id: int
    directions: list[int]
    trial: Any  # FrozenTrial under plain names
    env: dict[str, str]
    volatile: bool  # the study lives in memory and takes any object as an attribute
    plan: dict[str, Any] | None = None  # how it is to be executed


@dataclass(frozen=True)
class Reply:
    value: Any = None
    error: Any = None  # an exception to raise in the objective


@dataclass(frozen=True)
class Stop:
    """End at your next report; the trial goes on another time."""


Message = (
    Preload
    | Setup
    | StartCell
    | CaptureLog
    | SignalCell
    | Loaded
    | LoadFailed
    | Started
    | Exited
    | Ready
    | Suggest
    | ShouldPrune
    | RelativeParams
    | Look
    | Report
    | Note
    | Attribute
    | StopStudy
    | Finished
    | Task
    | Reply
    | Stop
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Message.__args__}


class ConnectionLost(Exception):
    """The other end is gone."""


def encode(message: Message) -> bytes:
    fields = {"": type(message).__name__, **vars(message)}
    return json.dumps(fields, default=_pickled, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line, object_hook=_unpickled)
    message: Message = _KINDS[fields.pop("")](**fields)
    return message


def faithful(value: Any) -> Any:
    """`value` if JSON brings it back as it is, otherwise its pickle."""
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    return value if same and _plain(value) else _pickled(value)


def _plain(value: Any) -> bool:
    """No tuples or subclasses hidden in it: JSON would turn them into something else."""
    if isinstance(value, list):
        return type(value) is list and all(map(_plain, value))
    if isinstance(value, dict):
        return all(
            type(key) is str and key != _PICKLED and _plain(item) for key, item in value.items()
        )
    return value is None or type(value) in (bool, int, float, str)


def _pickled(value: Any) -> dict[str, str]:
    return {_PICKLED: base64.b64encode(cloudpickle.dumps(value)).decode()}


def _unpickled(fields: dict[str, Any]) -> Any:
    if fields.keys() == {_PICKLED}:
        return cloudpickle.loads(base64.b64decode(fields[_PICKLED]))
    return fields


class Channel:
    """One end of a socket: whole messages in, whole messages out, in order.

    With `send_patience` a peer that reads nothing for so many seconds counts as gone, so that a
    stopped cell cannot hold up the coordinator.
    """

    def __init__(self, sock: socket.socket, send_patience: int | None = None) -> None:
        self.sock = sock
        self._lines: list[bytes] = []
        self._partial: list[bytes] = []
        self._fds: list[int] = []
        if send_patience is not None:
            limit = struct.pack("ll", send_patience, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        data = encode(message)
        try:
            if fds:
                sent = socket.send_fds(self.sock, [data], fds)
                data = data[sent:]
            self.sock.sendall(data)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self) -> Message:
        """Wait for the next message."""
        while not self._lines:
            self._read()
        return decode(self._lines.pop(0))

    def waiting(self) -> Iterator[Message]:
        """The messages that are here now; waits for none. Raises when the other end is gone."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        lost: ConnectionLost | None = None
        try:
            for _ in range(_MOST_READS):  # a chatterbox gets its turn, not all of them
                if not poll.poll(0):
                    break
                self._read()
        except ConnectionLost as error:
            lost = error  # what came before the end still counts
        while self._lines:
            yield decode(self._lines.pop(0))
        if lost:
            raise lost

    def has_waiting(self) -> bool:
        """True when something has arrived that was not read yet."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(self._lines or poll.poll(0))

    def has_room(self) -> bool:
        """True when a short message can be sent without waiting for the other end to read."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        return bool(poll.poll(0))

    def take_fd(self) -> int:
        """The oldest descriptor that came along and was not taken yet."""
        return self._fds.pop(0)

    def close(self) -> None:
        self.sock.close()
        for fd in self._fds:  # came along with messages that nobody has read yet
            os.close(fd)
        self._fds.clear()

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, _CHUNK, _MOST_FDS, _CLOEXEC)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        self._fds += fds
        if not data:
            raise ConnectionLost("closed")
        first, *rest = data.split(b"\n")
        self._partial.append(first)
        for part in rest:
            self._lines.append(b"".join(self._partial))
            self._partial = [part]
