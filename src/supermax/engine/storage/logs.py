"""Bounded logs: the beginning and the end of a trial's output."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from supermax._util.text import masked_addresses

HEAD = 512 * 1024  # bytes
TAIL = 512 * 1024  # bytes
_SHOWN = 4000  # characters in a tail
_READ = 32 * 1024  # bytes; more than a tail, so that a password cut at its start is masked too
_MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
"""Line of faulthandler that says nothing about a crash; with torch, thousands of characters."""


class BoundedLog:
    """Log file with the first HEAD and the last TAIL bytes written to it.

    Output after the head goes to two side files in turn, so that the end survives a crash of the
    writer; close() joins the parts. Errors of the disk lose output and are not raised.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = _size(path)  # output of earlier attempts
        self._skipped = 0
        self._parts = (path.with_suffix(".tail-a"), path.with_suffix(".tail-b"))
        self._current = 0
        self._current_size = 0
        if self._written >= HEAD:  # head and tail of an earlier attempt: append to the tail only
            self._written = HEAD

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            head = data[: max(0, HEAD - self._written)]
            self._append(self.path, head)
            self._written += len(head)
            if tail := data[len(head) :]:
                self._write_tail(tail)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._join_parts()

    def _join_parts(self) -> None:
        older, newer = (self._parts[1 - self._current], self._parts[self._current])
        tail = b"".join(part.read_bytes() for part in (older, newer) if part.exists())
        if tail:
            kept = tail[-TAIL:]
            left_out = self._skipped + len(tail) - len(kept)
            note = f"\n[… {left_out} bytes left out …]\n".encode() if left_out else b""
            self._append(self.path, note + kept)
        for part in self._parts:
            part.unlink(missing_ok=True)

    def _write_tail(self, data: bytes) -> None:
        if self._current_size + len(data) > TAIL and self._current_size:
            self._current = 1 - self._current
            self._current_size = 0
            if self._parts[self._current].exists():
                self._skipped += self._parts[self._current].stat().st_size
                self._parts[self._current].unlink()
        self._append(self._parts[self._current], data)
        self._current_size += len(data)

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        if data:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail_of(path: Path) -> str:
    """Return the end of a log with passwords masked, and without the list of extension modules
    that a crash writes; "": there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ))
            text = _MODULES.sub("", file.read().decode(errors="replace"))
            return masked_addresses(text)[-_SHOWN:]
    except OSError:
        return ""
