"""A search in a real terminal: drawn at 80 and 200 columns, resized, and ended by Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.ui.display.screen import Screen


class Session:
    """Search in a pseudo-terminal with an emulated screen."""

    def __init__(self, url: str, marks: Path, width: int, height: int) -> None:
        self.master, self.slave = os.openpty()
        self.screen = Screen(width, height)
        self.raw = ""
        self.resize(width, height)
        self.modes = termios.tcgetattr(self.slave)
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ui.display.searches", url, str(marks), "50"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            cwd=ROOT,
            env=environment,
        )

    def resize(self, width: int, height: int) -> None:
        """The kernel sends SIGWINCH by itself."""
        self.screen.resize(width, height)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        data = os.read(self.master, 65536).decode(errors="replace")
        self.raw += data
        self.screen.feed(data)
        return True

    def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, self.screen.text
            self.read(0.1)

    def shows(self, *pieces: str) -> None:
        self.until(lambda: all(piece in "\n".join(self.screen.visible) for piece in pieces))

    def frames(self, count: int) -> None:
        """Wait for so many more pictures, and check that every line fits the screen."""
        wraps, start = self.screen.wraps, len(self.raw)
        self.until(lambda: self.raw[start:].count("worker") >= count)
        assert self.screen.wraps == wraps

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def session(url: str, tmp_path: Path) -> Iterator[Session]:
    session = Session(url, tmp_path, 80, 24)
    yield session
    session.close()


def header(session: Session) -> str:
    """Empty while lines of a wider picture, broken anew, have pushed it off the screen."""
    rows = [row for row in session.screen.visible if "elapsed" in row and "worker" in row]
    return rows[-1] if rows else ""


@pytest.mark.slow
def test_drawn_resized_and_interrupted(session: Session) -> None:
    session.shows("2/50 finished", "bert-base-unca…", "░", "/30", "is the best so far: value ")
    session.shows("    value  ", "  elapsed", "complete")  # of the running ones, and of the others
    session.frames(3)
    assert len(header(session)) == 80
    assert "loss=" not in session.screen.text

    session.resize(200, 50)
    session.until(lambda: len(header(session)) == 200)
    session.shows("notes", "bert-base-uncased", "loss=0.", "812")
    session.frames(3)

    session.resize(80, 24)
    session.until(lambda: len(header(session)) == 80)
    session.frames(2)  # what was on its way came for the wide screen
    session.frames(3)
    session.until(lambda: len([row for row in session.screen.visible if "/30" in row]) == 2)

    os.write(session.master, b"\x03")
    session.until(lambda: session.process.poll() is not None)
    while session.read(0.2):
        pass
    assert session.process.returncode == 0
    last = [row for row in session.screen.visible if row]
    assert last[-1] == "program: interrupt"
    view = "\n".join(last[last.index(header(session)) :])
    assert "ended    stopped by interrupt" in view
    assert "2/50 finished" in view
    assert ". stopping: interrupt" in view
    assert "/30" not in view  # nothing runs any more
    assert session.screen.column == 0
    assert termios.tcgetattr(session.slave) == session.modes
    assert "\x1b[?" not in session.raw  # no mode was ever set
