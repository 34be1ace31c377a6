"""Tracker process: python -m supermax.results.tracking PARENT

Study and destination are in an environment variable, which only the same user can read. Standard
input tells how long to run: a byte means that no more trials come, end of file that the parent
has died.
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
from supermax.results.tracking.process import ENVIRONMENT, GIVEN_UP
from supermax.results.tracking.record import Standing, TrackingFolder
from supermax.results.tracking.source import StudySource


class Pipe:
    """Lifeline over the standard input of this process."""

    def __init__(self) -> None:
        self.ending = False

    def wait(self, seconds: float) -> None:
        ready, _, _ = select.select([0], [], [], seconds)
        if not ready:
            return
        if not os.read(0, 100):
            os._exit(1)  # the parent is gone; the next tracker sends what is missing
        self.ending = True


def main() -> int:
    system.die_with_parent(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(10)  # trials have priority
    given = json.loads(os.environ.pop(ENVIRONMENT))
    file = given["destination"].pop("file")
    target = Destination(**given["destination"], file=Path(file) if file else None)
    source = StudySource(**given["source"])
    folder = TrackingFolder(Path(source.run_dir) / "tracking", target.digest)
    with folder.locked(wait=True):
        follower = Follower(source, target, folder)
        try:
            follower.follow(Pipe())
        except SupermaxError as error:
            folder.write_standing(Standing(follower.sent, follower.left(), str(error)))
            return GIVEN_UP
        return 0 if follower.left() == 0 else GIVEN_UP


if __name__ == "__main__":
    sys.exit(main())
