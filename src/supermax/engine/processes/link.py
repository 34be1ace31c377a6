"""TCP connection between the coordinator and a host on another machine.

A line is the number of a cell, a space, and a message of that cell; 0 is the host itself. The
first line of a host is its Hello, with the secret of the run. Nothing is unpickled before the
secret was checked.
"""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from supermax.engine.processes.protocol import Lines, Message, encode_message

HOST = 0
"""Number that stands for the host itself instead of one of its cells."""
SEND_TIMEOUT = 20
"""Seconds that a host may leave a full socket unread before it counts as lost. Hosts wait without
a limit: the coordinator reads nothing while it waits for its database."""
LONGEST_HELLO = 1 << 16  # bytes
_KEEPALIVE = (  # a machine that vanished is noticed within 25 s
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
)


@dataclass(frozen=True)
class Hello:
    """First message of a host."""

    host: int
    """Number that the coordinator gave it."""
    secret: str
    node: str
    """Name or address of its machine."""
    scratch: str
    """Folder of its own, for trials if the run folder is not there."""
    shares_run_dir: bool
    """True: it sees the run folder of the coordinator."""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def read_hello(line: bytes, secret: str) -> Hello | None:
    """Return the Hello in a line; None: it is none, or has another secret."""
    try:
        hello = Hello(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    same = hmac.compare_digest(str(hello.secret).encode(errors="replace"), secret.encode())
    return hello if same else None


class Link(Lines):
    """One end of the connection."""

    def __init__(self, sock: socket.socket, send_timeout: int | None = None) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        super().__init__(sock, send_timeout)

    def send(self, cell: int, message: Message) -> None:
        self.relay(cell, encode_message(message))

    def relay(self, cell: int, line: bytes) -> None:
        """Send an encoded message, newline included."""
        self.send_line(b"%d %b" % (cell, line))

    def pending(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the encoded message of each line that has arrived."""
        for line in self.pending_lines():
            number, _, message = line.partition(b" ")
            yield int(number), message
