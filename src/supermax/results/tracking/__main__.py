"""Tracker process: python -m supermax.results.tracking PARENT

Study and destination are in an environment variable, which only the same user can read. Standard
input tells how long to run: a byte means that no more trials come, end of file that the parent
has died. Standard output has a line for each trouble, and empty lines as signs of life.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from pathlib import Path

from supermax._util import system
from supermax.errors import SupermaxError
from supermax.results.tracking.destination import Destination
from supermax.results.tracking.following import Follower
from supermax.results.tracking.kinds import make_backend
from supermax.results.tracking.process import ENVIRONMENT, GIVEN_UP
from supermax.results.tracking.record import Standing, TrackingFolder
from supermax.results.tracking.source import StudySource


class Pipe:
    """Lifeline over standard input and output, which no other process inherits."""

    def __init__(self) -> None:
        self.ending = False
        self._input, self._output = os.dup(0), os.dup(1)  # closed on exec
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(null, fd)

    def wait(self, seconds: float) -> None:
        self._write(b"\n")
        ready, _, _ = select.select([self._input], [], [], seconds)
        if not ready:
            return
        if not os.read(self._input, 100):
            os._exit(1)  # the parent is gone; the next tracker sends what is missing
        self.ending = True

    def report(self, trouble: str) -> None:
        self._write(json.dumps(trouble).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._output, data)


def main() -> int:
    system.die_with_parent(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(10)  # trials have priority
    lifeline = Pipe()
    given = json.loads(os.environ.pop(ENVIRONMENT))
    file = given["destination"].pop("file")
    target = Destination(**given["destination"], file=Path(file) if file else None)
    source = StudySource(**given["source"])
    folder = TrackingFolder(Path(source.run_dir) / "tracking", target.digest)
    with folder.locked(wait=True):
        follower = Follower(source, make_backend(target), folder)
        try:
            follower.follow(lifeline)
        except SupermaxError as error:
            lifeline.report(str(error).rstrip("."))
            folder.write_standing(Standing(follower.sent, follower.left(), str(error)))
            return GIVEN_UP
        return 0 if follower.left() == 0 else GIVEN_UP


if __name__ == "__main__":
    sys.exit(main())
