"""Start of the fork server's process: with its run, or ahead of it.

    ahead() ──▶ a fork server that imports what trials need ──take()──▶ Processes
                while this process does the same

Importing torch and an encoder's code takes seconds in each of the two processes. A fork server
that is started ahead imports at the same time as its run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from supermax._util import system
from supermax._util.threads import brief_spinning
from supermax.engine.processes.fork_server import command
from supermax.engine.processes.protocol import Channel, ConnectionLost, Preload

TAG = "SUPERMAX_RUN"
"""Environment variable that marks all processes of a run with its identity."""
_PLACEHOLDER = "0" * 32  # as long as any identity: it is overwritten in place
SEND_TIMEOUT = 5
"""Seconds that a process may leave a full socket unread before it counts as gone."""
_READ_LATE = ("CUDA_", "TORCHINDUCTOR_")  # read on first use, not when torch is imported
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",  # joblib's n_jobs=-1 means this many
)
_READ_EARLY = (*_THREADS, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MIMALLOC_")
"""Variables that runs set and imports read."""


@dataclass
class ForkServerProcess:
    """Fork server that waits for its Setup. `env` is the environment it was started with."""

    process: subprocess.Popen[bytes]
    channel: Channel
    objective: IO[bytes]
    env: dict[str, str]

    def write(self, objective: bytes) -> None:
        """Hand over the objective's pickle; the fork server reads it after its Setup."""
        with self.objective as file:
            file.write(objective)

    def lacks(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of `env` that the process does not have."""
        return {name: value for name, value in env.items() if self.env.get(name) != value}

    def suits(self, env: Mapping[str, str]) -> bool:
        """Return whether the process can take over `env`: variables that libraries read while they
        are imported must be set already."""
        late = all(map(self._may_come_late, self.lacks(env)))
        return late and self.env.keys() <= env.keys() and self.process.poll() is None

    def _may_come_late(self, name: str) -> bool:
        """Return whether a variable may be set after the imports. A new one that runs do not set
        was set by a library that both processes import: scikit-learn sets KMP_INIT_AT_FORK."""
        new = name not in self.env and not name.startswith(_READ_EARLY)
        return new or name == TAG or name.startswith(_READ_LATE)

    def end(self) -> None:
        self.channel.close()
        self.objective.close()
        self.process.kill()
        self.process.wait()


def start(
    env: Mapping[str, str], output: int | IO[bytes] = subprocess.DEVNULL
) -> ForkServerProcess:
    """Start a fork server. Raises OSError if the system refuses a process or a file."""
    with contextlib.ExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        objective = undo.enter_context(tempfile.TemporaryFile())
        with theirs:
            fds = (theirs.fileno(), objective.fileno())
            process = subprocess.Popen(
                command("fork_server", *fds, os.getpid()),
                env=dict(env),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        undo.pop_all()
    return ForkServerProcess(process, Channel(ours, SEND_TIMEOUT), objective, dict(env))


_waiting: list[ForkServerProcess] = []  # at most one


@contextlib.contextmanager
def ahead(module: str, arguments: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Start the fork server of the run inside this block ahead of it.

    It imports `module` and calls its function preload() with `arguments`. `env` holds the
    variables that the run is expected to add to the environment; a run that adds others starts a
    fork server of its own.
    """
    # After an error the run starts its own, or reports why not.
    with contextlib.suppress(OSError, ConnectionLost):
        started = start({**os.environ, **env, TAG: _PLACEHOLDER})
        _waiting.append(started)
        started.channel.send(Preload(module, list(arguments)))
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().end()


def take(env: Mapping[str, str]) -> ForkServerProcess | None:
    """Return the fork server that was started ahead, if it suits; None otherwise."""
    if not _waiting:
        return None
    started = _waiting.pop()
    if started.suits(env):
        return started
    started.end()
    return None


def thread_limits(workers: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that divide the cores among the cells and have waiting threads
    sleep soon, without those that the user has set.

    A single cell gets no limits: joblib's processes would inherit them, and each would start as
    many threads as there are cores.
    """
    limits = {} if workers == 1 else thread_variables(max(1, system.cores() // workers))
    limits |= brief_spinning(environment)
    return {name: value for name, value in limits.items() if name not in environment}


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit libraries to this many threads."""
    return dict.fromkeys(_THREADS, str(threads))
