"""What a person sees of a run: a live view in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from supermax.display.gauges import Gauges
from supermax.engine.events import Event, Listener

__all__ = ["display_for"]


def display_for(
    progress: bool | None, stream: TextIO | None = None, gauges: Gauges | None = None
) -> contextlib.AbstractContextManager[Listener]:
    """The display to open around a run; what the context gives is the listener to feed.

    ``progress`` is None or True for a live view where the stream is a terminal and plain lines
    where it is not, False for nothing at all. The live view shows what somebody samples with
    ``gauges``. The stream is standard error unless given.
    """
    stream = stream if stream is not None else sys.stderr
    if progress is False or stream is None:
        return contextlib.nullcontext(_ignore)
    if _can_draw(stream):
        # Only here, so that a run without a terminal does not pay for importing rich.
        from supermax.display.live import LiveDisplay

        return LiveDisplay(stream, gauges=gauges)
    from supermax.display.plain import PlainDisplay

    return PlainDisplay(stream)


def _ignore(event: Event) -> None:
    """Nobody is looking."""
    del event


def _can_draw(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    except ValueError:  # closed
        return False
