"""The keeper's process: started by its run, or ahead of it.

    ahead() ──▶ a keeper that imports what trials need ──take()──▶ Fleet
                while this process does the same

Importing torch and an encoder's code takes seconds in each of the two processes. A keeper that is
started ahead does it at the same time as its run.
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

from supermax.engine import kernel
from supermax.engine.keeper import command
from supermax.engine.protocol import Channel, ConnectionLost, Preload

TAG = "SUPERMAX_RUN"
_PLACEHOLDER = "0" * 32  # as long as any tag, which is written over it
SEND_PATIENCE = 5  # seconds a process may leave its mail unread before it counts as gone
_READ_LATE = ("CUDA_", "TORCHINDUCTOR_")  # when a trial needs it, not when torch is imported
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",  # joblib's n_jobs=-1 means this many
)
_READ_EARLY = (*_THREADS, "MIMALLOC_")  # of those that runs set: by libraries, while imported


@dataclass
class KeeperProcess:
    """A keeper that waits for its Setup. `env` is what it was started with."""

    process: subprocess.Popen[bytes]
    channel: Channel
    objective: IO[bytes]
    env: dict[str, str]

    def write(self, objective: bytes) -> None:
        """Hand over the objective's pickle; the keeper reads it after its Setup."""
        with self.objective as file:
            file.write(objective)

    def lacks(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of `env` that the process does not have."""
        return {name: value for name, value in env.items() if self.env.get(name) != value}

    def suits(self, env: Mapping[str, str]) -> bool:
        """Tell whether the process can take over `env`: variables that libraries read while they
        are imported must be there already."""
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


def start(env: Mapping[str, str], output: int | IO[bytes] = subprocess.DEVNULL) -> KeeperProcess:
    """Start a keeper. Raises OSError where the machine has no room for it."""
    with contextlib.ExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        objective = undo.enter_context(tempfile.TemporaryFile())
        with theirs:
            fds = (theirs.fileno(), objective.fileno())
            process = subprocess.Popen(
                command("keeper", *fds, os.getpid()),
                env=dict(env),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        undo.pop_all()
    return KeeperProcess(process, Channel(ours, SEND_PATIENCE), objective, dict(env))


_waiting: list[KeeperProcess] = []  # at most one


@contextlib.contextmanager
def ahead(module: str, arguments: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Start the keeper of the run that comes in this block. It imports `module` and calls its
    function preload() with `arguments`. `env` is what its run is expected to add to the
    environment; a run that adds something else starts a keeper of its own."""
    with contextlib.suppress(OSError, ConnectionLost):  # the run starts its own, or says why not
        started = start({**os.environ, **env, TAG: _PLACEHOLDER})
        _waiting.append(started)
        started.channel.send(Preload(module, list(arguments)))
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().end()


def take(env: Mapping[str, str]) -> KeeperProcess | None:
    """Return the keeper that was started ahead, if there is one that suits."""
    if not _waiting:
        return None
    started = _waiting.pop()
    if started.suits(env):
        return started
    started.end()
    return None


def thread_limits(workers: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Share the cores among the cells, unless the user has said how.

    One cell alone gets no limits: joblib's processes would inherit them, and each would start as
    many threads as there are cores.
    """
    if workers == 1:
        return {}
    share = str(max(1, kernel.cores() // workers))
    return {name: share for name in _THREADS if name not in environment}
