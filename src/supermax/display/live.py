"""The live view: the state of the run, drawn again four times a second by a thread.

The listener only updates the state. The thread takes the lock to turn the state into something
rich can draw, never while it writes, so a slow terminal does not hold up the run.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live

from supermax.display.state import RunState
from supermax.display.view import draw
from supermax.engine import events as ev

REFRESH_PER_SECOND = 4


class _Console(Console):
    """A console that leaves nothing to restore: even a killed run leaves a usable terminal."""

    def show_cursor(self, show: bool = True) -> bool:
        return False

    def on_broken_pipe(self) -> None:
        self.quiet = True  # rich would end the process


class _Live(Live):
    def refresh(self) -> None:
        with contextlib.suppress(Exception):
            super().refresh()


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """A listener whose state is on the screen while the context is open."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = RunState(clock)
        self._lock = threading.RLock()  # a signal handler may come in on the thread that holds it
        # Without markup, since what the program prints passes through this console as well.
        self._console = _Console(
            file=stream, force_jupyter=False, markup=False, highlight=False, emoji=False
        )
        # Printed lines go above the view, but only those that were bound for the terminal.
        self._live = _Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=REFRESH_PER_SECOND,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._moved: list[tuple[logging.StreamHandler[Any], FileProxy]] = []

    def __enter__(self) -> LiveDisplay:
        with contextlib.suppress(Exception):
            self._live.start(refresh=True)
            self._moved = list(_move_logging())
        return self

    def __call__(self, event: ev.Event) -> None:
        with self._lock:
            self.state.update(event)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self.state.close()
        try:
            with contextlib.suppress(Exception):
                self._live.stop()
        finally:
            for handler, proxy in self._moved:
                if handler.stream is proxy:
                    handler.setStream(proxy.rich_proxied_file)

    def _draw(self) -> RenderableType:
        with self._lock:
            return draw(self.state, self._console.height)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _move_logging() -> Iterator[tuple[logging.StreamHandler[Any], FileProxy]]:
    """Let log lines go above the view too: handlers hold on to the stream they were made with."""
    proxies = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, FileProxy)]
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            for proxy in proxies:
                if getattr(handler, "stream", None) is proxy.rich_proxied_file:
                    handler.setStream(proxy)
                    yield handler, proxy
