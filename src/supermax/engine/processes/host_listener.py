"""Connections that hosts open to the coordinator, until their Hello has arrived."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time

from supermax.engine.processes.link import LONGEST_HELLO, SEND_TIMEOUT, Hello, Link, read_hello
from supermax.engine.processes.protocol import ConnectionLost

_HELLO_TIMEOUT = 10.0  # seconds for a new connection to say who it is
_MAX_UNKNOWN = 64  # connections that have not said who they are


class HostListener:
    """Accepts connections, and closes those whose first line is no Hello with the secret. Both
    the socket and the connections are registered with `selector`, a connection as its data."""

    def __init__(self, address: str, selector: selectors.BaseSelector) -> None:
        self.socket = socket.create_server((address, 0), backlog=128)
        self.socket.setblocking(False)
        self.secret = secrets.token_hex(32)
        self._selector = selector
        self._unknown: dict[Link, float] = {}  # connections without a Hello yet → since when
        selector.register(self.socket, selectors.EVENT_READ)

    @property
    def address(self) -> tuple[str, int]:
        host, port, *_ = self.socket.getsockname()
        return host, port

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self.socket.accept()
            if len(self._unknown) >= _MAX_UNKNOWN:
                sock.close()
                return
            sock.setblocking(True)
            link = Link(sock, SEND_TIMEOUT)
            self._unknown[link] = time.monotonic()
            self._selector.register(link, selectors.EVENT_READ, link)

    def identify(self, link: Link) -> Hello | None:
        """Read the Hello of a new connection, which leaves the selector then; None: it has not
        arrived, or the connection was closed because it is none."""
        try:
            line = next(link.pending_lines(), None)
        except ConnectionLost:
            line = b""
        if line is None and link.unfinished <= LONGEST_HELLO:
            return None
        self._forget(link)
        if (hello := read_hello(line or b"", self.secret)) is None:
            link.close()
        return hello

    def close_silent(self, now: float) -> None:
        """Close the connections that have sent no Hello in time."""
        for link, since in list(self._unknown.items()):
            if now > since + _HELLO_TIMEOUT:
                self._forget(link)
                link.close()

    def _forget(self, link: Link) -> None:
        self._selector.unregister(link)
        del self._unknown[link]

    def close(self) -> None:
        for link in self._unknown:
            link.close()
        self._unknown.clear()
        self.socket.close()
