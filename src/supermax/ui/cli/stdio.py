"""Standard streams that never end a run: closed, on a full disk, or with a narrow encoding."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import textwrap
from functools import partial
from typing import IO, TextIO

COMMAND = "supermax "
"""Text in each line that has a command to copy."""


class Surviving(io.TextIOBase):
    """Stream that drops text which cannot be written, so that a search continues when its
    terminal is closed or the disk of its log is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        try:
            return bool(self._stream.isatty())
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        return int(self._stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._stream, "encoding", None) or "utf-8")


def open_streams() -> None:
    """Open closed standard streams on /dev/null and replace characters that they cannot encode.

    Without this, the next file that is opened would get descriptor 0, 1 or 2 and receive output.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 (until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Send standard output to /dev/null, so that flushing its buffer at exit cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())


def wrapped(text: str, stream: IO[str]) -> str:
    """Wrap each line between words at the width of the terminal, if the stream is one. Lines with
    a command stay whole, to be copied."""
    if not stream.isatty():
        return text
    fold = partial(
        textwrap.fill,
        width=max(20, shutil.get_terminal_size().columns),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(line if COMMAND in line else fold(line) for line in text.split("\n"))
