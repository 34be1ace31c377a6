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

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.live_render import LiveRender
from rich.segment import Segment

from supermax.display import text
from supermax.display.gauges import Gauges
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


class _Drawn(LiveRender):
    """Knows how many rows its last picture takes on a screen that has become narrower: there the
    terminal has broken the lines that did not fit, and rich would go up too few rows."""

    def __init__(self, console: Console) -> None:
        super().__init__("")
        self._console = console
        self._widths: list[int] = []

    def position_cursor(self) -> Control:
        width, height = self._console.size
        if self._shape is not None and width < self._shape[0]:
            rows = sum(max(1, -(-cells // max(1, width))) for cells in self._widths)
            self._shape = (width, min(rows, height))
        return super().position_cursor()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = list(super().__rich_console__(console, options))
        drawn = [part for part in segments if isinstance(part, Segment)]
        self._widths = [Segment.get_line_length(line) for line in Segment.split_lines(drawn)]
        yield from segments


class _Live(Live):
    def __init__(self, console: Console, **how: Any) -> None:
        super().__init__(console=console, **how)
        self._live_render = _Drawn(console)

    def refresh(self) -> None:
        with contextlib.suppress(Exception):
            super().refresh()


def live_on(stream: TextIO, picture: Callable[[Console], RenderableType]) -> Live:
    """A part of the terminal that is drawn anew some times a second, and left as it is then."""
    # Without markup, since what the program prints passes through this console as well.
    console = _Console(
        file=stream, force_jupyter=False, markup=False, highlight=False, emoji=False
    )
    # Printed lines go above the view, but only those that were bound for the terminal.
    return _Live(
        console,
        get_renderable=lambda: picture(console),
        refresh_per_second=REFRESH_PER_SECOND,
        redirect_stdout=_is_terminal(sys.stdout),
        redirect_stderr=_is_terminal(sys.stderr),
    )


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """A listener whose state is on the screen while the context is open."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        gauges: Gauges | None = None,
    ) -> None:
        self.state = RunState(clock)
        self._gauges = gauges
        self._lock = threading.RLock()  # a signal handler may come in on the thread that holds it
        self._live = live_on(stream, self._draw)
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
            self.state.close(text.ending(error))
        try:
            with contextlib.suppress(Exception):
                self._live.stop()
        finally:
            for handler, proxy in self._moved:
                if handler.stream is proxy:
                    handler.setStream(proxy.rich_proxied_file)

    def _draw(self, console: Console) -> RenderableType:
        options = console.options
        with self._lock:
            if self._gauges is not None:
                self.state.readings = self._gauges.last
            picture = draw(self.state, console.height)
            return Group(*picture.lines(options.max_width, options.ascii_only))


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
