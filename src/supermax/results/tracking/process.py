"""Handle of the tracker process: started, restarted when it dies, and ended.

The tracker cannot affect the run: it only reads, and after its deadline it is killed. The next
tracker sends what is missing.
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

from supermax.results.tracking.destination import Destination
from supermax.results.tracking.record import Standing, TrackingFolder, unsent
from supermax.results.tracking.server import SETTINGS
from supermax.results.tracking.source import StudySource

ENVIRONMENT = "SUPERMAX_TRACKING"
GIVEN_UP = 3
"""Exit code of a tracker that must not be restarted: it would end the same way again."""
_PAUSES = (0.5, 2.0, 10.0, 60.0)  # seconds before a restart


class Tracker:
    """Process that sends the trials of a study to MLflow, from start() to stop()."""

    def __init__(
        self,
        source: StudySource,
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
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)

    def start(self) -> None:
        self.folder.make()
        self._thread.start()

    def stop(self, patience: float = 10.0) -> int:
        """Wait at most `patience` seconds for the rest to be sent, then end the process. Returns
        the number of finished trials that are not in MLflow yet."""
        self._ending.set()
        try:
            with self._guard:
                self._announce_ending()
            self._thread.join(patience)
        finally:
            with self._guard:
                self._over.set()
                if self._process is not None:
                    self._process.kill()
            self._thread.join()
        return 0 if self._code == 0 else self.unsent()

    def unsent(self) -> int:
        """Return the number of finished trials that are not in MLflow yet."""
        return unsent(self._trials(), self.folder.record(self._study_key))

    @property
    def standing(self) -> Standing:
        return self.folder.standing()

    @property
    def pid(self) -> int | None:
        with self._guard:
            return self._process.pid if self._process is not None else None

    def _run(self) -> None:
        """Start the process, and restart it when it dies. Runs in a thread of its own, because
        the kernel kills a process with the thread that started it (PR_SET_PDEATHSIG)."""
        deaths = 0
        while self._spawn():
            assert self._process is not None
            self._code = self._process.wait()
            self._close_pipe()
            deaths += 1
            if self._code in (0, GIVEN_UP) or (self._ending.is_set() and deaths > len(_PAUSES)):
                return
            self._ending.wait(_PAUSES[min(deaths, len(_PAUSES)) - 1])

    def _spawn(self) -> bool:
        """Return whether a process was started."""
        with self._guard:
            if self._over.is_set():
                return False
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "supermax.results.tracking", str(os.getpid())],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:  # no processes or memory left: the run continues untracked
                return False
            if self._ending.is_set():
                self._announce_ending()
            return True

    def _announce_ending(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # the process has ended
                self._process.stdin.write(b".")
                self._process.stdin.flush()

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def _environment(source: StudySource, destination: Destination) -> dict[str, str]:
    """Return the environment of the process. It carries the secrets, because any user can read a
    command line. PYTHONPATH makes it import this copy of the package."""
    target = asdict(destination)
    target["file"] = str(destination.file) if destination.file is not None else None
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **SETTINGS,
        **destination.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        ENVIRONMENT: json.dumps({"source": asdict(source), "destination": target}),
    }
