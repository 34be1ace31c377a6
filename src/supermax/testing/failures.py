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


def segfault() -> None:
    ctypes.string_at(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    os.abort()


def hang_ignoring_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def exit_0() -> None:
    os._exit(0)


def exit_3() -> None:
    os._exit(3)


def sys_exit() -> None:
    sys.exit(7)


def exhaust_memory() -> None:
    """Allocate until a limit on the data segment (RLIMIT_DATA) is reached."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))
    blocks = []
    while True:
        blocks.append(bytearray(1 << 20))


def hold_the_gil() -> None:
    """Loop in C without end: no other Python thread and no Python signal handler runs."""
    sum(iter(int, 1))


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


def overflow_the_stack() -> None:
    """Recurse in C, where Python's recursion limit does not apply."""
    faulthandler._stack_overflow()  # type: ignore[attr-defined]


def leave_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=False).start()


def close_all_files() -> None:
    """Close all descriptors, the socket to the coordinator included, then hang."""
    os.closerange(3, 10_000)
    threading.Event().wait()


def sleep_for_ever() -> None:
    time.sleep(1e6)


FAILURES: dict[str, Action] = {
    "SIGSEGV": segfault,
    "SIGKILL": kill_itself,
    "SIGABRT": abort,
    "hang, deaf to SIGTERM": hang_ignoring_sigterm,
    "os._exit(0)": exit_0,
    "os._exit(3)": exit_3,
    "sys.exit": sys_exit,
    "memory exhausted": exhaust_memory,
    "endless loop that holds the GIL": hold_the_gil,
    "100 MB of output": flood_output,
    "grandchild left behind": leave_grandchild,
    "deep recursion": recurse,
    "stack overflow": overflow_the_stack,
    "thread that never ends": leave_thread,
    "hang": sleep_for_ever,
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
