"""What the engine asks of the operating system: lifelines, process trees, memory facts.

Linux has all of it. Elsewhere each call does what it can and otherwise nothing, so that
macOS runs with process groups alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import psutil

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when `parent`'s starting thread ends, GIL held or not."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def outlive_parent() -> None:
    """Undo die_with_parent: this process notices by itself, and cleans up first."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Descendants that lose their parent become children of this process, even after setsid."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_first_oom_victim() -> None:
    """Memory is short: the kernel shall take a cell before the coordinator."""
    if LINUX:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def gpus() -> int | None:
    """How many NVIDIA GPUs this machine has, or None where that cannot be seen."""
    try:
        return len(list((_PROC / "driver/nvidia/gpus").iterdir()))
    except OSError:
        return None


def children() -> list[int]:
    """Direct children of this process, zombies included."""
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
    """True for a process that is dead and merely not yet reaped, or gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_group(pgid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def tagged(tag: str) -> list[int]:
    """Live processes whose start-up environment carries `tag`, this one left out."""
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
    """Write a variable over the one that this process was started with, so that `tagged` finds
    it and the processes that it forks. Only a value of the same length can be written; others
    are left."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    before, new = os.environb.get(name.encode()), value.encode()
    if LINUX and before is not None and len(before) == len(new):
        ctypes.memmove(libc.getenv(name.encode()), new, len(new))


def sweep(tag: str, patience: float = 10.0) -> int:
    """Kill every process that carries `tag` until none is left; returns how many there were."""
    seen: set[int] = set()
    deadline = time.monotonic() + patience
    while (pids := tagged(tag)) and time.monotonic() < deadline:
        seen.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)  # nothing to wait on: they are not our children
    return len(seen)


def oom_kills() -> int:
    """How often the kernel has killed for memory so far, on this host and in this cgroup."""
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


def forget_peak_rss() -> None:
    """Start the peak of resident memory anew for this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss() -> int | None:
    """Peak resident bytes of this process since forget_peak_rss, where that can be known."""
    return _status("VmHWM:")


def data_size() -> int | None:
    """Bytes of data that this process has, as RLIMIT_DATA counts them."""
    return _status("VmData:")


def resident_size() -> int | None:
    return _status("VmRSS:")


def _status(key: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return None


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
