"""Wire protocol between coordinator, fork server and cells: message classes and their encoding.

One message is one line of JSON on a Unix stream socket; file descriptors may accompany it
(SCM_RIGHTS). Values that do not survive a JSON round trip (trials of study views, categorical
choices that are objects) are embedded as pickles: both ends are the same installation, started by
the same user.
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

import cloudpickle
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from supermax.engine.trial.notes import Fact

PAUSE = "pause"
"""Reply to ShouldPrune: the trial is interrupted here, and may continue later."""
_READ_SIZE = 1 << 16  # bytes
_MAX_FDS = 4
_MAX_READS = 64
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_PICKLED = "$pickle"


class Message:
    """Base class of all messages. Their fields are JSON values, or are pickled."""


# Coordinator to fork server ---------------------------------------------------------------------


@dataclass(frozen=True)
class Preload(Message):
    """Import `module` and call its function preload() with `arguments`; Setup comes later."""

    module: str
    arguments: list[str]


@dataclass(frozen=True)
class Setup(Message):
    """Configure the fork server. The log's file descriptor accompanies it."""

    fresh: bool
    """True: a new cell for every trial."""
    argv: list[str]
    """sys.argv of the user's program, which objectives may read."""
    env: dict[str, str]
    """Environment variables that were not known when the process was started."""


@dataclass(frozen=True)
class StartCell(Message):
    """Start a cell. The cell's end of its socket accompanies it."""

    cell: int
    env: dict[str, str]


@dataclass(frozen=True)
class CaptureLog(Message):
    """Copy a trial's output to `path`. The read end of its output pipe accompanies it."""

    cell: int
    path: str
    send: bool = False
    """True: send it as Output instead, to be written where `path` is."""


@dataclass(frozen=True)
class SignalCell(Message):
    cell: int
    signum: int
    group: bool = True
    """True: signal the whole process group of the cell."""


@dataclass(frozen=True)
class CloseCell(Message):
    """Close the sending side of a cell's socket, on its host: an idle cell then exits."""

    cell: int


# Fork server to coordinator ---------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectiveLoaded(Message):
    """Report that the objective was unpickled, its imports included."""

    why_not_fork: str | None
    """Reason why cells start as new interpreters; None: they are forked."""


@dataclass(frozen=True)
class LoadFailed(Message):
    error: str
    traceback: str


@dataclass(frozen=True)
class Started(Message):
    cell: int
    pid: int


@dataclass(frozen=True)
class Exited(Message):
    cell: int
    code: int | None
    signum: int | None
    max_rss: int
    """Peak resident memory in bytes."""
    strays: int
    """Number of descendants that outlived the cell and were killed."""
    oom_kills: int = 0
    """Number of processes that the kernel's OOM killer ended on its machine during its task."""


@dataclass(frozen=True)
class Disconnected(Message):
    """Report from a host that a cell closed its socket."""

    cell: int


@dataclass(frozen=True)
class HostFailed(Message):
    """Last message of a host whose fork server has died."""

    log: str
    """End of the fork server's log."""


@dataclass(frozen=True)
class Output(Message):
    """Output of a trial whose log is on another machine."""

    path: str
    data: str
    """Bytes in base64."""


# Cell to coordinator -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ready(Message):
    pid: int


@dataclass(frozen=True)
class Suggest(Message):
    name: str
    distribution: BaseDistribution | str
    """JSON text where that is exact, otherwise the object itself, which is pickled."""


@dataclass(frozen=True)
class ShouldPrune(Message):
    pass


@dataclass(frozen=True)
class RelativeParams(Message):
    pass


@dataclass(frozen=True)
class ReadStudy(Message):
    """Read from the study: an allowed storage method, or `sampler` or `pruner`."""

    what: str
    args: list[object]


@dataclass(frozen=True)
class Report(Message):
    step: int
    value: float
    written: bool = True
    """False: the cell could not append it to the trial's folder; the coordinator does."""


@dataclass(frozen=True)
class Note(Message):
    """Progress of the trial for displays. There is no reply."""

    facts: dict[str, Fact]


@dataclass(frozen=True)
class Attribute(Message):
    key: str
    value: object
    system: bool


@dataclass(frozen=True)
class StopStudy(Message):
    pass


@dataclass(frozen=True)
class Finished(Message):
    """Report that the objective returned or raised."""

    outcome: dict[str, object]
    """Outcome.to_json()."""
    unclean: str | None
    """Reason why this cell should not run another trial; None: it may."""
    written: bool = True
    """False: the cell could not write outcome.json; the coordinator does, except after an
    interruption, which has no file."""


# Coordinator to cell -----------------------------------------------------------------------


@dataclass(frozen=True)
class Task(Message):
    """Run one attempt at a trial. The write end of its output pipe accompanies it."""

    folder: str
    attempt: int
    study_name: str
    study_id: int
    directions: list[int]
    trial: FrozenTrial
    """Trial whose parameters have the objective's names, without branch suffixes."""
    env: dict[str, str]
    volatile: bool
    """True: the study is in memory, where attributes may be any object."""
    plan: dict[str, object] | None = None
    """Execution plan (`trial.plan`); None: the run has no planner."""
    checkpoints: str | None = None
    """Shared folder or URL of the trial's checkpoints; None: they are in the run folder."""
    token: int = 0
    """Fencing token of the trial's lease; 0: it has none."""
    away: bool = False
    """True: the folder is not the one that the coordinator sees, which writes reports and outcome
    itself."""


@dataclass(frozen=True)
class Reply(Message):
    value: object = None
    error: Exception | None = None
    """Exception to raise in the objective; None: there is none."""


@dataclass(frozen=True)
class Stop(Message):
    """End the trial at its next report; a later run resumes it."""


_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}


class ConnectionLost(Exception):
    """Raised when the peer closed the socket, died, or has not read for too long."""


def encode_message(message: Message) -> bytes:
    fields = {"": type(message).__name__, **vars(message)}
    return json.dumps(fields, default=_pickle, separators=(",", ":")).encode() + b"\n"


def decode_message(line: bytes) -> Message:
    fields = json.loads(line, object_hook=_unpickle)
    return _KINDS[fields.pop("")](**fields)


def json_or_pickle(value: object) -> object:
    """Return `value` if it survives a JSON round trip unchanged, otherwise its pickle."""
    try:
        equal = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError, RecursionError):
        equal = False
    return value if equal and _has_json_types(value) else _pickle(value)


def _has_json_types(value: object) -> bool:
    """Return whether `value` is built of JSON's own types: JSON turns tuples and subclasses into
    something else that may still compare equal."""
    if isinstance(value, list):
        return type(value) is list and all(map(_has_json_types, value))
    if isinstance(value, dict):
        return all(
            type(key) is str and key != _PICKLED and _has_json_types(item)
            for key, item in value.items()
        )
    return value is None or type(value) in (bool, int, float, str)


def _pickle(value: object) -> dict[str, str]:
    return {_PICKLED: base64.b64encode(cloudpickle.dumps(value)).decode()}


def _unpickle(fields: dict[str, str]) -> object:
    if fields.keys() == {_PICKLED}:
        return cloudpickle.loads(base64.b64decode(fields[_PICKLED]))
    return fields


class Lines:
    """One end of a socket that sends and receives whole lines, in order.

    With `send_timeout`, a send fails with ConnectionLost when the peer has not read for that many
    seconds, so that a stopped cell cannot block the coordinator.
    """

    def __init__(self, sock: socket.socket, send_timeout: int | None = None) -> None:
        self.sock = sock
        self._lines: list[bytes] = []
        self._partial: list[bytes] = []
        self._fds: list[int] = []
        if send_timeout is not None:
            limit = struct.pack("ll", send_timeout, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send_line(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a line that ends with a newline, accompanied by file descriptors."""
        try:
            if fds:
                sent = socket.send_fds(self.sock, [data], fds)
                data = data[sent:]
            self.sock.sendall(data)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive_line(self) -> bytes:
        """Block until the next line and return it."""
        while not self._lines:
            self._read()
        return self._lines.pop(0)

    def pending_lines(self) -> Iterator[bytes]:
        """Yield the lines that have arrived, without blocking. Raise ConnectionLost after them if
        the peer is gone."""
        lost: ConnectionLost | None = None
        try:
            for _ in range(_MAX_READS):  # so that one busy peer does not starve the others
                if not self._is_ready(select.POLLIN):
                    break
                self._read()
        except ConnectionLost as error:
            lost = error  # lines that arrived before the end are still delivered
        while self._lines:
            yield self._lines.pop(0)
        if lost:
            raise lost

    @property
    def unfinished(self) -> int:
        """Number of bytes that have arrived of a line without its end."""
        return sum(map(len, self._partial))

    def has_pending(self) -> bool:
        """Return whether data has arrived that was not read yet."""
        return bool(self._lines) or self._is_ready(select.POLLIN)

    def is_writable(self) -> bool:
        """Return whether a short message can be sent without blocking."""
        return self._is_ready(select.POLLOUT)

    def _is_ready(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self.sock, event)
        return bool(poll.poll(0))

    def take_fd(self) -> int:
        """Return the oldest received file descriptor that was not taken yet."""
        return self._fds.pop(0)

    def close(self) -> None:
        self.sock.close()
        for fd in self._fds:  # received with messages that were not processed
            os.close(fd)
        self._fds.clear()

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, _READ_SIZE, _MAX_FDS, _CLOEXEC)
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


class Channel(Lines):
    """One end of a socket that sends and receives whole messages, in order."""

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        self.send_line(encode_message(message), fds)

    def receive(self) -> Message:
        """Block until the next message and return it."""
        return decode_message(self.receive_line())

    def pending(self) -> Iterator[Message]:
        """Yield the messages that have arrived, without blocking. Raise ConnectionLost after them
        if the peer is gone."""
        return map(decode_message, self.pending_lines())
