"""Handle of a tracker process: started, restarted when it dies or hangs, and ended.

The tracker cannot affect the run: it only reads, and after its deadline it is killed. The next
tracker sends what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from optuna.trial import FrozenTrial

from supermax.results.tracking.destination import Destination
from supermax.results.tracking.kinds import settings_of, title_of
from supermax.results.tracking.record import Standing, TrackingFolder, unsent
from supermax.results.tracking.source import StudySource

ENVIRONMENT = "SUPERMAX_TRACKING"
GIVEN_UP = 3
"""Exit code of a tracker that must not be restarted: it would end the same way again."""
_PAUSES = (0.5, 2.0, 10.0, 60.0)  # seconds before a restart
_SILENT = 60.0
"""Seconds without a sign of life after which the user is told."""
_HUNG = 600.0
"""Seconds without a sign of life after which the process is killed and restarted."""
_DEATHS = 2
"""Deaths of the process after which the user is told."""


class Tracker:
    """Process that sends the trials of a study to a tracker, from start() to stop().

    `tell` is called with at most one message about trouble, from another thread.
    """

    def __init__(
        self,
        source: StudySource,
        destination: Destination,
        *,
        study_key: str,
        trials: Callable[[], Iterable[FrozenTrial]],
        tell: Callable[[str], None] = print,
    ) -> None:
        self.destination = destination
        self.folder = TrackingFolder(Path(source.run_dir) / "tracking", destination.digest)
        self.trouble: str | None = None
        """First trouble of this run; None: there was none."""
        self._environment = _environment(source, destination)
        self._study_key = study_key
        self._trials = trials
        self._tell = tell
        self._ending = threading.Event()
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)

    def start(self) -> None:
        """Start the process. A disk that refuses its files affects the tracking, not the run."""
        try:
            self.folder.make()
        except Exception as error:
            self._report(str(error).rstrip("."))
            return
        self._thread.start()

    def announce_ending(self) -> None:
        """Let the process send the rest and end, without waiting for it."""
        self._ending.set()
        with self._guard:
            self._announce_ending()

    def stop(self, patience: float = 10.0) -> int:
        """Wait at most `patience` seconds for the rest to be sent, then end the process. Returns
        the number of finished trials that are not sent yet."""
        try:
            self.announce_ending()
            self._join(patience)
        finally:
            with self._guard:
                self._over.set()
                self._kill()
            self._join(None)
        return 0 if self._code == 0 else self.unsent()

    def unsent(self) -> int:
        """Return the number of finished trials that are not sent yet."""
        return unsent(self._trials(), self.folder.record(self._study_key))

    @property
    def standing(self) -> Standing:
        return self.folder.standing()

    @property
    def pid(self) -> int | None:
        with self._guard:
            return self._process.pid if self._process is not None else None

    def _join(self, seconds: float | None) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        """Start the process, and restart it when it dies. Runs in a thread of its own, because
        the kernel kills a process with the thread that started it (PR_SET_PDEATHSIG)."""
        deaths = 0
        while self._spawn():
            assert self._process is not None
            self._listen(self._process)
            self._code = self._process.wait()
            self._close_pipes(self._process)
            deaths += 1
            if self._over.is_set() or self._code in (0, GIVEN_UP):
                return
            if deaths >= _DEATHS:
                self._report(f"its process died {deaths} times ({_ending_of(self._code)})")
            if self._ending.is_set() and deaths > len(_PAUSES):
                return
            self._ending.wait(_PAUSES[min(deaths, len(_PAUSES)) - 1])

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Read the messages of the process until it ends. Kill it if it hangs."""
        assert process.stdout is not None
        fd, heard = process.stdout.fileno(), time.monotonic()
        rest = b""
        while True:
            if select.select([fd], [], [], min(1.0, _SILENT))[0]:
                if not (data := os.read(fd, 65536)):
                    return
                heard = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(None, lines):
                    self._report(json.loads(line))
            silent = time.monotonic() - heard
            if silent > _SILENT:
                self._report(f"its process has not responded for {silent:.0f} s")
            if silent > _HUNG:
                with self._guard:
                    self._kill()

    def _report(self, trouble: str) -> None:
        """Tell the user about the first trouble of the run."""
        if self.trouble is None:
            self.trouble = trouble
            self._tell(
                f"{title_of(self.destination)}: {trouble}. The run is not affected: what is "
                f"missing is sent when this works again."
            )

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
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:  # no processes or memory left: the run continues untracked
                self._report(f"its process cannot be started ({error.strerror})")
                return False
            if self._ending.is_set():
                self._announce_ending()
            return True

    def _announce_ending(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # the process has ended
                self._process.stdin.write(b".")
                self._process.stdin.flush()

    def _kill(self) -> None:
        """Kill the process and those that it has started in its group."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _ending_of(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _environment(source: StudySource, destination: Destination) -> dict[str, str]:
    """Return the environment of the process. It carries the secrets, because any user can read a
    command line. PYTHONPATH makes it import this copy of the package."""
    target = asdict(destination)
    target["file"] = str(destination.file) if destination.file is not None else None
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **settings_of(destination),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        ENVIRONMENT: json.dumps({"source": asdict(source), "destination": target}),
    }
