"""Operating system calls of the engine: parent-death signals, process trees, memory use.

Linux supports all of them. On other platforms a call does what it can and otherwise nothing, so
that macOS runs with process groups alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import psutil

LINUX = sys.platform == "linux"
SignalHandler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
"""Argument and result of signal.signal."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send `signum` to this process when the thread of `parent` that started it
    ends (PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def outlive_parent() -> None:
    """Undo die_with_parent, for a process that detects its parent's end itself and cleans up."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Make this process the child subreaper of its descendants: orphans become its children, even
    after setsid."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prefer_as_oom_victim() -> None:
    """Have the kernel's OOM killer choose this process before others."""
    if LINUX:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def count_gpus() -> int | None:
    """Return the number of NVIDIA GPUs of this machine; None: it cannot be read."""
    try:
        return len(list((_PROC / "driver/nvidia/gpus").iterdir()))
    except OSError:
        return None


def children() -> list[int]:
    """Return the pids of the direct children of this process, zombies included."""
    try:
        pids = [
            int(pid)
            for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
    except OSError:  # macOS, or a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children()]
    return pids


def is_zombie(pid: int) -> bool:
    """Return whether a process is dead: not yet reaped, or gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_group(pgid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def tagged(tag: str) -> list[int]:
    """Return the pids of live processes that were started with `tag` (NAME=value) in their
    environment, except this one."""
    needle = tag.encode()
    if not LINUX:
        return []
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if not is_zombie(pid)]


def show_in_environ(name: str, value: str) -> None:
    """Overwrite a variable in the environment block that /proc/PID/environ shows, so that `tagged`
    finds this process and its forks. Only a value of the same length is written."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    before, new = os.environb.get(name.encode()), value.encode()
    if LINUX and before is not None and len(before) == len(new):
        ctypes.memmove(libc.getenv(name.encode()), new, len(new))


def kill_tagged(tag: str, timeout: float = 10.0) -> int:
    """Kill the processes with `tag` until none is left or `timeout` seconds have passed; return
    their number."""
    seen: set[int] = set()
    deadline = time.monotonic() + timeout
    while (pids := tagged(tag)) and time.monotonic() < deadline:
        seen.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)  # not children of this process: their end cannot be waited for
    return len(seen)


def oom_kills() -> int:
    """Return the number of processes that the OOM killer has killed on this host and in this
    cgroup."""
    count = 0
    for path, key in (
        (Path("/proc/vmstat"), "oom_kill"),
        (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
    ):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    count += int(value)
    return count


def reset_peak_rss() -> None:
    """Reset the peak resident memory (VmHWM) of this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss() -> int | None:
    """Return the peak resident bytes of this process since reset_peak_rss; None: unknown."""
    return _status("VmHWM:")


def data_size() -> int | None:
    """Return the bytes of data of this process as RLIMIT_DATA counts them; None: unknown."""
    return _status("VmData:")


def resident_size() -> int | None:
    """Return the resident bytes of this process; None: unknown."""
    return _status("VmRSS:")


def _status(key: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return None


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
