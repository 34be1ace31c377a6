"""Live view of a run, redrawn four times a second by a thread.

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
from typing import IO, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.live_render import LiveRender
from rich.segment import Segment

from supermax.engine import events as ev
from supermax.ui.display import text
from supermax.ui.display.gauges import Gauges
from supermax.ui.display.state import RunState
from supermax.ui.display.view import draw_view

REFRESH_PER_SECOND = 4


class _Console(Console):
    """Console that never hides the cursor, so that even a killed run leaves a usable terminal."""

    def show_cursor(self, show: bool = True) -> bool:
        return False

    def on_broken_pipe(self) -> None:
        self.quiet = True  # rich would exit the process


class _LiveRender(LiveRender):
    """Live render that survives a terminal that has become narrower.

    The terminal then wraps the lines of the last picture, which take more rows than rich moves
    the cursor up. So the rows are counted again for the new width.
    """

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
    """Live view that ignores errors while it draws: they must not end the run."""

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        # Printed lines go above the view, but only those of streams that are the terminal.
        super().__init__(
            console=console,
            get_renderable=picture,
            refresh_per_second=REFRESH_PER_SECOND,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._live_render = _LiveRender(console)

    def refresh(self) -> None:
        with contextlib.suppress(Exception):
            super().refresh()


def live_on(stream: TextIO, picture: Callable[[Console], RenderableType]) -> Live:
    """Return a live region of the terminal that is redrawn several times a second and stays
    visible at the end."""
    # Without markup, because everything that the program prints passes through this console.
    console = _Console(
        file=stream, force_jupyter=False, markup=False, highlight=False, emoji=False
    )
    return _Live(console, lambda: picture(console))


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """Listener that shows the state of the run while the context is open."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        gauges: Gauges | None = None,
    ) -> None:
        self.state = RunState(clock)
        self._gauges = gauges
        self._lock = threading.RLock()  # a signal handler may run on the thread that holds it
        self._live = live_on(stream, self._draw)
        self._redirected: list[tuple[logging.StreamHandler[IO[str] | FileProxy], FileProxy]] = []

    def __enter__(self) -> LiveDisplay:
        with contextlib.suppress(Exception):
            self._live.start(refresh=True)
            self._redirected = list(_redirect_logging())
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
            for handler, proxy in self._redirected:
                if handler.stream is proxy:
                    handler.setStream(proxy.rich_proxied_file)

    def _draw(self, console: Console) -> RenderableType:
        options = console.options
        with self._lock:
            if self._gauges is not None:
                self.state.readings = self._gauges.last
            picture = draw_view(self.state, console.height)
            return Group(*picture.lines(options.max_width, options.ascii_only))


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _redirect_logging() -> Iterator[tuple[logging.StreamHandler[IO[str] | FileProxy], FileProxy]]:
    """Print log lines above the view too: handlers keep the stream they were created with, so
    each one is given the proxy. Yields the handlers to restore."""
    proxies = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, FileProxy)]
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            for proxy in proxies:
                if getattr(handler, "stream", None) is proxy.rich_proxied_file:
                    handler.setStream(proxy)
                    yield handler, proxy
