"""Progress display of a run: a live view in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from supermax.engine.events import Listener
from supermax.ui.display.gauges import Gauges

__all__ = ["display_for"]


def display_for(
    progress: bool | None, stream: TextIO | None = None, gauges: Gauges | None = None
) -> contextlib.AbstractContextManager[Listener]:
    """Return a context manager around a run that yields the listener for its events.

    ``progress`` is None or True for a live view if the stream is a terminal and plain lines
    otherwise; False for no output at all. The live view shows the last readings of ``gauges``,
    which it does not sample itself. The stream defaults to standard error.
    """
    stream = stream if stream is not None else sys.stderr
    if progress is False or stream is None:
        return contextlib.nullcontext(lambda _: None)
    if _can_draw(stream):
        # Imported here, so that a run without a terminal does not import rich.
        from supermax.ui.display.live import LiveDisplay

        return LiveDisplay(stream, gauges=gauges)
    from supermax.ui.display.plain import PlainDisplay

    return PlainDisplay(stream)


def _can_draw(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    except ValueError:  # closed
        return False
