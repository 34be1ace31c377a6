"""Injected failures: what a trial can do to its process, and when.

They are real: real signals, real limits, a real loop that holds the GIL. Run them only inside a
cell.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from optuna.trial import BaseTrial

Action = Callable[[], object]

MOMENTS = (
    "before the first suggest",
    "between reports",
    "while returning",
    "after returning",
    "in a child process",
)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang_ignoring_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def exhaust_memory() -> None:
    """Allocate until a limit on the data segment (RLIMIT_DATA) is reached."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))
    blocks = []
    while True:
        blocks.append(bytearray(1 << 20))


def flood_output() -> None:
    """Write 100 MB to standard output and standard error, past Python's streams."""
    line = b"x" * 9_999 + b"\n"
    for _ in range(5_000):
        os.write(1, line)
        os.write(2, line)


def leave_grandchild() -> None:
    """Leave an orphaned process in a session of its own."""
    script = "import subprocess,sys;subprocess.Popen(['sleep','600'],start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], check=True)


def recurse() -> None:
    recurse()


def leave_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=False).start()


def close_all_files() -> None:
    """Close all descriptors, the socket to the coordinator included, then hang."""
    os.closerange(3, 10_000)
    threading.Event().wait()


FAILURES: dict[str, Action] = {
    "SIGSEGV": partial(ctypes.string_at, 0),
    "SIGKILL": kill_itself,
    "SIGABRT": os.abort,
    "hang, deaf to SIGTERM": hang_ignoring_sigterm,
    "os._exit(0)": partial(os._exit, 0),
    "os._exit(3)": partial(os._exit, 3),
    "sys.exit": partial(sys.exit, 7),
    "memory exhausted": exhaust_memory,
    # In C: no other Python thread and no Python signal handler runs.
    "endless loop that holds the GIL": lambda: sum(iter(int, 1)),
    "100 MB of output": flood_output,
    "grandchild left behind": leave_grandchild,
    "deep recursion": recurse,
    # In C, where Python's recursion limit does not apply.
    "stack overflow": lambda: faulthandler._stack_overflow(),  # type: ignore[attr-defined]
    "thread that never ends": leave_thread,
    "hang": partial(time.sleep, 1e6),
    "all files closed, then a hang": close_all_files,
    "unpicklable result": threading.Lock,
    "NaN": lambda: float("nan"),
}


class _FailingNumber:
    """Result that fails when it is converted to a float."""

    def __init__(self, action: Action, value: float) -> None:
        self._action = action
        self._value = value

    def __float__(self) -> float:
        self._action()
        return self._value


def failing_objective(failure: str, moment: str) -> Callable[[BaseTrial], Any]:
    """Return an objective that injects `failure` at `moment`, and otherwise returns (x - 2)²."""
    fail = FAILURES[failure]
    is_result = failure in ("unpicklable result", "NaN")

    def objective(trial: BaseTrial) -> object:
        if moment == "before the first suggest":
            fail()
        x = trial.suggest_float("x", -10, 10)
        trial.report(x, 0)
        if moment == "between reports":
            fail()
        trial.report(x, 1)
        value = (x - 2) ** 2
        if moment == "while returning":
            return fail() if is_result else _FailingNumber(fail, value)
        if moment == "after returning":
            atexit.register(fail)
        if moment == "in a child process":
            if (pid := os.fork()) == 0:
                fail()
                return value  # a child that does not exit returns from the objective as well
            _wait_briefly(pid)
        return value

    return objective


def _wait_briefly(pid: int) -> None:
    """Wait for a child for at most half a second: it may hang."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.01)
