"""What a trial can do to its process, and when.

Every villain is real: a real signal, a real limit, a real loop that holds the GIL. Run them only
inside a cell.
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

Mischief = Callable[[], Any]

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


def hang_deaf_to_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def exit_0() -> None:
    os._exit(0)


def exit_3() -> None:
    os._exit(3)


def sys_exit() -> None:
    sys.exit(7)


def exhaust_memory() -> None:
    """Allocate until a real limit on the data segment says no."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))


def hold_the_gil() -> None:
    """Loop in C for ever: no other Python thread runs, no Python signal handler either."""
    sum(iter(int, 1))


def flood_output() -> None:
    """100 MB on both streams, from Python and from below it."""
    line = b"x" * 9_999 + b"\n"
    for _ in range(5_000):
        os.write(1, line)
        os.write(2, line)


def leave_grandchild() -> None:
    """A process in a session of its own, whose parent is gone."""
    script = "import subprocess,sys;subprocess.Popen(['sleep','600'],start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], check=True)


def recurse() -> None:
    recurse()


def overflow_the_stack() -> None:
    """Recursion below Python, where no limit watches."""
    faulthandler._stack_overflow()  # type: ignore[attr-defined]


def leave_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=False).start()


def close_all_files() -> None:
    """Takes the connection to the coordinator along, then hangs."""
    os.closerange(3, 10_000)
    threading.Event().wait()


def sleep_for_ever() -> None:
    time.sleep(1e6)


VILLAINS: dict[str, Mischief] = {
    "SIGSEGV": segfault,
    "SIGKILL": kill_itself,
    "SIGABRT": abort,
    "hang, deaf to SIGTERM": hang_deaf_to_term,
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


class _Trap:
    """A number that does mischief when it is read as one."""

    def __init__(self, villain: Mischief, value: float) -> None:
        self._villain = villain
        self._value = value

    def __float__(self) -> float:
        self._villain()
        return self._value


def mischief(villain: str, moment: str) -> Callable[[Any], Any]:
    """An objective that lets `villain` loose at `moment`, and otherwise returns (x - 2)²."""
    act = VILLAINS[villain]
    is_result = villain in ("unpicklable result", "NaN")

    def objective(trial: Any) -> Any:
        if moment == "before the first suggest":
            act()
        x = trial.suggest_float("x", -10, 10)
        trial.report(x, 0)
        if moment == "between reports":
            act()
        trial.report(x, 1)
        value = (x - 2) ** 2
        if moment == "while returning":
            return act() if is_result else _Trap(act, value)
        if moment == "after returning":
            atexit.register(act)
        if moment == "in a child process":
            if (pid := os.fork()) == 0:
                act()
                return value  # what a careless child does: it comes back out of the objective
            _wait_a_little(pid)
        return value

    return objective


def _wait_a_little(pid: int) -> None:
    """Wait for a child, but not for one that hangs."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.01)
