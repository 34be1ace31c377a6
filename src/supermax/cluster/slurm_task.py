"""One task of a job array: runs `supermax tune`, and requeues itself when it is interrupted.

    Slurm ──TERM──▶ run pauses with a checkpoint ──▶ exit code ──is_requeued()──▶ end, or requeue

Called by the job script: python -m supermax.cluster.slurm_task FOLDER [OPTIONS] -- ARGUMENTS of
`supermax tune`. Slurm announces two things in two ways, and both pause the run. Before the time
limit, TERM comes to this process (--signal=B:TERM@…). At the start of the grace time of a
preemption, TERM goes to the processes of all steps, and not here. The run is no step: its cells
would be ended by that signal before they could save a checkpoint. The only step is one that waits
for it. With --database, task 0 also runs the database, until the other tasks have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supermax._util.files import make_folder
from supermax.cluster.database import DatabaseFolder, answers
from supermax.cluster.slurm import JobFolder
from supermax.engine.processes.supervisor import ENVIRONMENT, INTERRUPTED, REACHED
from supermax.engine.storage.locks import Lock
from supermax.engine.storage.run_folder import StudyFolder
from supermax.errors import EnvironmentFault, UserError

_TERMINATED = 128 + signal.SIGTERM
_RUNNING, _PENDING = "RUNNING", "PENDING"
_DATABASE_PATIENCE = 600.0  # seconds
_GIVE_WAY = 60.0  # seconds: the first task may be waiting for the resources of this one
_WATCH_INTERVAL = 30.0
_RECENTLY = 120.0
_RESTART_PAUSE = 15.0
_ASK_AGAIN = (0, 2, 5, 10)  # seconds before each question to Slurm at the end
_POLL_INTERVAL = 10.0
_STOP_TIMEOUT = 20.0


def is_requeued(code: int, state: str, *, database_lost: bool) -> bool:
    """Return whether the task is requeued after its run has ended with `code`.

    `state` is the state of the task in Slurm. If it is not RUNNING, the user has cancelled it, or
    Slurm requeues it itself. `database_lost`: the database is away, but will be back.
    """
    interrupted = code in (INTERRUPTED, _TERMINATED)
    return state == _RUNNING and (interrupted or (code == ENVIRONMENT and database_lost))


@dataclass(frozen=True)
class ArrayTask:
    """Task of a job array, as Slurm names it."""

    job: str
    task: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ArrayTask:
        try:
            return cls(environment["SLURM_ARRAY_JOB_ID"], int(environment["SLURM_ARRAY_TASK_ID"]))
        except (KeyError, ValueError):
            raise EnvironmentFault(
                "This is no task of a job array of Slurm: submit the job script with sbatch."
            ) from None

    @property
    def id(self) -> str:
        # Not SLURM_JOB_ID: that of the last task is the id of the whole array.
        return f"{self.job}_{self.task}"

    def states(self) -> dict[int, str] | None:
        """Return the states of all tasks of the array that have not ended; None: Slurm does not
        answer."""
        command = ["squeue", "--noheader", "--array", "--jobs", self.job, "--format", "%K %T"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"squeue failed: {done.stderr.strip()}")
            return None
        words = [line.split() for line in done.stdout.splitlines()]
        return {int(pair[0]): pair[1] for pair in words if len(pair) == 2 and pair[0].isdigit()}

    def requeue(self) -> None:
        say(f"Task {self.id} is requeued.")
        subprocess.run(["scontrol", "requeue", self.id], check=False)

    def cancel_pending(self) -> None:
        """Cancel the tasks that have not started: all trials are finished."""
        subprocess.run(["scancel", "--state=PENDING", self.job], check=False)


class StopNotice:
    """TERM for this process: waits end, and the run gets it as well."""

    def __init__(self) -> None:
        self.asked = False
        self.run: subprocess.Popen[bytes] | None = None
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.asked = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b".")
        self.forward()

    def forward(self) -> None:
        if self.asked and self.run is not None:
            self.run.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Wait, for less if TERM comes; return whether it has come."""
        select.select([self._read], [], [], seconds)
        return self.asked


class PreemptionNotice:
    """Step that ends when Slurm is about to preempt the job. This process then gets TERM."""

    def __init__(self) -> None:
        self._closed = False
        # `cat` ends with its input. A TERM for srun itself would kill the step, noisily.
        self._step = subprocess.Popen(
            ["srun", "--quiet", "--ntasks=1", "cat"], stdin=subprocess.PIPE
        )
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        code = self._step.wait()
        if self._closed:
            return
        if code in (_TERMINATED, -signal.SIGTERM):
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            say(f"srun ended with exit code {code}: a preemption will end trials without notice.")

    def close(self) -> None:
        self._closed = True
        assert self._step.stdin is not None
        with contextlib.suppress(OSError):
            self._step.stdin.close()
        self._thread.join(_STOP_TIMEOUT)


class Host:
    """Keeps the database running, from a thread, until `stop`. Should another machine run it
    already, it is started here once that one has stopped."""

    def __init__(self, folder: DatabaseFolder) -> None:
        self._command = [sys.executable, "-P", "-m", "supermax", "database", str(folder.path)]
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, daemon=True)
        self._thread.start()

    def _keep_running(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                if self._ended.is_set():
                    return
                # In a session of its own: what Slurm sends to the batch script must not stop it.
                self._server = subprocess.Popen(self._command, start_new_session=True)
            self._server.wait()
            self._ended.wait(_RESTART_PAUSE)

    def stop(self) -> None:
        """Stop the server and disconnect its clients."""
        self._ended.set()
        with self._lock:
            server = self._server
        if server is not None and server.poll() is None:
            server.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_STOP_TIMEOUT)


class Runner:
    """Life of a task."""

    def __init__(self, task: ArrayTask, folder: JobFolder, database: Path | None) -> None:
        self._task, self._folder = task, folder
        self._database = DatabaseFolder(database) if database is not None else None
        self._stop = StopNotice()
        self._away_at = -math.inf  # time at which the database did not answer

    def run(self, arguments: Sequence[str]) -> int:
        """Run `supermax tune`; return its exit code, after the task was requeued if need be."""
        hosted = self._database if self._task.task == 0 else None
        notice = PreemptionNotice()
        host = Host(hosted) if hosted is not None else None
        try:
            code = self._tune(arguments)
            while host is not None and not self._may_stop_serving(code):
                if self._stop.wait(_POLL_INTERVAL):
                    code = _TERMINATED
            if host is not None and code == REACHED:
                self._task.cancel_pending()
            lost = host is None and self._database_lost()
        finally:
            if host is not None:
                host.stop()
            notice.close()
        state = self._own_state()
        if is_requeued(code, state, database_lost=lost):
            self._task.requeue()
        return code

    def _own_state(self) -> str:
        """Return the state of this task; ask again while Slurm does not answer."""
        for pause in _ASK_AGAIN:
            time.sleep(pause)
            if (states := self._task.states()) is not None:
                return states.get(self._task.task, "unknown")
        return "unknown"

    def _tune(self, arguments: Sequence[str]) -> int:
        environment = self._environment()
        if environment is None:
            return _TERMINATED if self._stop.asked else ENVIRONMENT
        run_dir = self._run_dir()
        command = [sys.executable, "-P", "-m", "supermax", "tune", *arguments]
        command += ["--run-dir", str(run_dir)]
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
        self._stop.run = run
        self._stop.forward()  # a TERM that came before
        code = self._wait(run)
        self._stop.run = None
        if self._stop.asked and code == ENVIRONMENT:  # the database was away when it paused
            return _TERMINATED
        return 128 - code if code < 0 else code

    def _run_dir(self) -> Path:
        """Return the first run folder of this task that no run uses."""
        make_folder(self._folder.runs)
        for copy in itertools.count():
            found = self._folder.run_dir(self._task.job, self._task.task, copy)
            with contextlib.suppress(UserError):  # another run has it locked
                Lock(StudyFolder(found).lock, "").release()
                break
            say(f"Another run of this task uses {found}; this one takes another folder.")
        return found

    def _wait(self, run: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the run, and note when the database is away meanwhile."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return run.wait(_WATCH_INTERVAL if self._database is not None else None)
            if not self._answers():
                self._away_at = time.monotonic()

    def _environment(self) -> dict[str, str] | None:
        """Return the environment of the run, once the database answers; None: it does not."""
        if self._database is None:
            return {**os.environ, "SUPERMAX_STORAGE": self._folder.storage.read_text().strip()}
        if not self._wait_for_database():
            say(f"The database in {self._database.path} does not answer.")
            return None
        return {**os.environ, **self._database.environment}

    def _wait_for_database(self) -> bool:
        """Wait until the database answers; return False if that takes too long, or TERM came."""
        started = looked = time.monotonic()
        while not self._answers():
            if self._stop.wait(1.0):
                return False
            now = time.monotonic()
            if now - started > _DATABASE_PATIENCE:
                return False
            if now - looked > _GIVE_WAY:
                looked = now
                states = self._task.states()
                if states is not None and states.get(0) != _RUNNING:
                    return False
        return True

    def _answers(self) -> bool:
        service = self._database.service() if self._database is not None else None
        return service is not None and service.port > 0 and answers(service)

    def _database_lost(self) -> bool:
        """Return whether the database is, or just was, away while the task that runs it has not
        ended. The run may have given up in the moment in which it came back."""
        recently = time.monotonic() - self._away_at < _RECENTLY
        if self._database is None or (self._answers() and not recently):
            return False
        states = self._task.states()
        return states is None or 0 in states

    def _may_stop_serving(self, code: int) -> bool:
        """Return whether no other task needs the database. After the last trial, tasks that have
        not started yet do not."""
        if code in (INTERRUPTED, _TERMINATED):
            return True
        if (states := self._task.states()) is None:
            return False
        others = [state for task, state in states.items() if task != self._task.task]
        return not [state for state in others if code != REACHED or state != _PENDING]


def say(text: str) -> None:
    print(f"[supermax] {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="supermax.cluster.slurm_task")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--database", type=Path)
    parser.add_argument("--gpus", action="store_true", help="use all GPUs of the job")
    parser.add_argument("tune", nargs="+")
    given = parser.parse_args()
    tune = list(given.tune)
    if given.gpus and (gpus := os.environ.get("CUDA_VISIBLE_DEVICES")):
        tune += ["--gpus", gpus]
    try:
        task = ArrayTask.of(os.environ)
        return Runner(task, JobFolder(given.folder), given.database).run(tune)
    except (EnvironmentFault, OSError) as error:
        say(str(error))
        return ENVIRONMENT


if __name__ == "__main__":
    sys.exit(main())
