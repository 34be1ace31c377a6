"""Stand-in for Slurm: runs job arrays on this machine, preempts, kills and requeues tasks.

It does what Slurm 22.05 was seen to do. A preemption sends TERM to the processes of steps, and
after the grace time TERM and KILL to all processes of the job; the announcement of the time limit
sends TERM to the batch script alone; `scontrol requeue` ends a task and starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests import ROOT

JOB = "7"
_PROGRAMS = ("sbatch", "srun", "scontrol", "squeue", "scancel")


class Cluster:
    """Cluster of one machine with one job array. Its programs are in `bin`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        for name in _PROGRAMS:
            words = [sys.executable, "-m", "tests.cluster.stand_in", name, str(folder)]
            program = f'#!/bin/sh\nPYTHONPATH={ROOT}:"$PYTHONPATH" exec {shlex.join(words)} "$@"\n'
            (self.bin / name).write_text(program)
            (self.bin / name).chmod(0o755)
        self.codes: dict[int, int] = {}
        """Exit codes of the tasks that have ended."""
        self.starts: dict[int, int] = {}
        self._batch: dict[int, subprocess.Popen[bytes]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._control)

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        """Start the submitted tasks, and again what is requeued, inside this block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._closed.set()
            self._thread.join()
            for task in list(self._batch):
                self._end(task)

    @property
    def options(self) -> dict[str, str]:
        """Options of the submitted script."""
        lines = re.findall(r"^#SBATCH --(.*)$", (self.folder / "script").read_text(), re.M)
        words = [shlex.split(line)[0].partition("=") for line in lines]
        return {name: value for name, _, value in words}

    def log(self, task: int) -> str:
        path = Path(self.options["output"].replace("%A", JOB).replace("%a", str(task)))
        return path.read_text() if path.exists() else ""

    def preempt(self, task: int, grace: float) -> None:
        """Preempt a task: it has `grace` seconds to end."""
        for process in self._processes(task, steps=True):
            _send(process, signal.SIGTERM)
        try:
            self._batch[task].wait(grace)  # it also ends where the task requeues itself
        except subprocess.TimeoutExpired:
            self.requeue(task)

    def announce_time_limit(self, task: int) -> None:
        self._batch[task].send_signal(signal.SIGTERM)

    def requeue(self, task: int) -> None:
        (self.folder / f"requeue-{task}").touch()

    def _control(self) -> None:
        first, last = map(int, self.options["array"].split("-"))
        for task in range(first, last + 1):
            self._start(task)
        while not self._closed.wait(0.05):
            for task, batch in list(self._batch.items()):
                request = self.folder / f"requeue-{task}"
                if request.exists():
                    request.unlink()
                    self._end(task)
                    self._start(task)
                elif (code := batch.poll()) is not None:
                    self._end(task)
                    self.codes[task] = code

    def _start(self, task: int) -> None:
        self.starts[task] = self.starts.get(task, 0) + 1
        path = Path(self.options["output"].replace("%A", JOB).replace("%a", str(task)))
        env = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "SLURM_ARRAY_JOB_ID": JOB,
            "SLURM_ARRAY_TASK_ID": str(task),
            "TMPDIR": tempfile.mkdtemp(prefix=f"node{task}-"),  # each node has its own
        }
        with path.open("ab") as output:
            self._batch[task] = subprocess.Popen(
                ["bash", self.folder / "script"],
                cwd=self.options["chdir"],
                env=env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        (self.folder / f"state-{task}").write_text("RUNNING")

    def _end(self, task: int) -> None:
        """End all processes of a task, as at the end of a job."""
        (self.folder / f"state-{task}").unlink(missing_ok=True)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            processes = self._processes(task)
            for process in processes:
                _send(process, signum)
            psutil.wait_procs(processes, timeout=1.0)
        self._batch.pop(task).wait()

    def _processes(self, task: int, *, steps: bool = False) -> list[psutil.Process]:
        """Return the processes of a task; with `steps`, those of its steps only."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                env = process.environ()
                mine = env.get("SLURM_ARRAY_TASK_ID") == str(task)
                here = env.get("PATH", "").startswith(str(self.bin))
                if mine and here and (not steps or "SLURM_STEP_ID" in env):
                    found.append(process)
        return found


def _send(process: psutil.Process, signum: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signum)


# The programs.


def sbatch(folder: Path, *args: str) -> int:
    if "REFUSED" in Path(args[-1]).read_text():
        print("sbatch: error: invalid partition specified: REFUSED", file=sys.stderr)
        return 1
    (folder / "script").write_text(Path(args[-1]).read_text())
    print(JOB)
    return 0


def srun(_: Path, *args: str) -> int:
    command = args[[word.startswith("-") for word in args].index(False) :]
    step = subprocess.Popen(command, env={**os.environ, "SLURM_STEP_ID": "0"})
    signal.signal(signal.SIGTERM, lambda *_: step.terminate())
    code = step.wait()
    return 128 - code if code < 0 else code


def scontrol(folder: Path, *args: str) -> int:
    assert args[0] == "requeue"
    job, _, task = args[1].partition("_")
    assert job == JOB
    (folder / f"requeue-{task}").touch()
    return 0


def squeue(folder: Path, *args: str) -> int:
    assert args[-2:] == ("--format", "%K %T")
    for path in folder.glob("state-*"):
        print(path.name.partition("-")[2], path.read_text())
    return 0


def scancel(folder: Path, *args: str) -> int:
    (folder / "cancelled").write_text(json.dumps(args))
    return 0


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
