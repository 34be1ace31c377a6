"""The tracker as the user's program holds it: a process of its own, kept alive, and ended.

Nothing it does or fails to do reaches the run: it only reads, and when its time is up it is
killed. What it has not sent by then is sent by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from optuna.trial import FrozenTrial

from supermax.tracking.destination import Destination
from supermax.tracking.record import Standing, TrackingFolder, unsent
from supermax.tracking.server import SETTINGS
from supermax.tracking.source import Source

ENVIRONMENT = "SUPERMAX_TRACKING"
GIVEN_UP = 3
"""The exit code of a tracker that would end the same way again."""
_PAUSES = (0.5, 2.0, 10.0, 60.0)  # seconds before one that died is started again


class Tracker:
    """Follows a study into MLflow from start() to stop()."""

    def __init__(
        self,
        source: Source,
        destination: Destination,
        *,
        study_key: str,
        trials: Callable[[], Iterable[FrozenTrial]],
    ) -> None:
        self.folder = TrackingFolder(Path(source.run_dir) / "tracking", destination.digest)
        self._environment = _environment(source, destination)
        self._study_key = study_key
        self._trials = trials
        self._ending = threading.Event()
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._thread = threading.Thread(target=self._keep, name="tracker", daemon=True)

    def start(self) -> None:
        self.folder.make()
        self._thread.start()

    def stop(self, patience: float = 10.0) -> int:
        """Give it `patience` seconds to send the rest, then end it. Returns how many finished
        trials are not in MLflow yet."""
        self._ending.set()
        try:
            with self._guard:
                self._tell_ending()
            self._thread.join(patience)
        finally:
            with self._guard:
                self._over.set()
                if self._process is not None:
                    self._process.kill()
            self._thread.join()
        return 0 if self._code == 0 else self.unsent()

    def unsent(self) -> int:
        return unsent(self._trials(), self.folder.record(self._study_key))

    @property
    def standing(self) -> Standing:
        return self.folder.standing()

    @property
    def pid(self) -> int | None:
        with self._guard:
            return self._process.pid if self._process is not None else None

    def _keep(self) -> None:
        """In a thread: start it, and start it again when it dies. The kernel ends the process
        with the thread that started it, which is this one."""
        deaths = 0
        while self._begin():
            assert self._process is not None
            self._code = self._process.wait()
            self._close_pipe()
            deaths += 1
            if self._code in (0, GIVEN_UP) or (self._ending.is_set() and deaths > len(_PAUSES)):
                return
            self._ending.wait(_PAUSES[min(deaths, len(_PAUSES)) - 1])

    def _begin(self) -> bool:
        with self._guard:
            if self._over.is_set():
                return False
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "supermax.tracking", str(os.getpid())],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:  # no process, no memory: the run goes on without
                return False
            if self._ending.is_set():
                self._tell_ending()
            return True

    def _tell_ending(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it is gone already
                self._process.stdin.write(b".")
                self._process.stdin.flush()

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def _environment(source: Source, destination: Destination) -> dict[str, str]:
    """Secrets go this way, for everybody can read a command line. The process finds this very
    package, and no file of the user's that happens to be called mlflow.py."""
    target = asdict(destination)
    target["file"] = str(destination.file) if destination.file is not None else None
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **SETTINGS,
        **destination.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        ENVIRONMENT: json.dumps({"source": asdict(source), "destination": target}),
    }
