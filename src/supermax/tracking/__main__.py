"""The process that follows a study: python -m supermax.tracking PARENT

What to follow and where to is in the environment, which only the same user can read; how long, on
the standard input: a byte says that no more trials come, its end that whoever asked is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from pathlib import Path

from supermax.engine import kernel
from supermax.errors import SupermaxError
from supermax.tracking.destination import Destination
from supermax.tracking.following import Follower
from supermax.tracking.process import ENVIRONMENT, GIVEN_UP
from supermax.tracking.record import Standing, TrackingFolder
from supermax.tracking.source import Source


class Pipe:
    """The lifeline: this process's standard input."""

    def __init__(self) -> None:
        self.ending = False

    def wait(self, seconds: float) -> None:
        ready, _, _ = select.select([0], [], [], seconds)
        if not ready:
            return
        if not os.read(0, 100):
            os._exit(1)  # nobody is left whom this would serve; what is missing is sent later
        self.ending = True


def main() -> int:
    kernel.die_with_parent(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(10)  # the trials come first
    asked = json.loads(os.environ.pop(ENVIRONMENT))
    file = asked["destination"].pop("file")
    target = Destination(**asked["destination"], file=Path(file) if file else None)
    source = Source(**asked["source"])
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
