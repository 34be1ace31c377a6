"""File descriptors: how many a run needs, and the limit on them (RLIMIT_NOFILE).

A process may raise its soft limit up to the hard limit; only root may raise that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from supermax.errors import EnvironmentFault

_RUN, _CELL = 24, 3
"""Descriptors that a run needs (locks, database, selector, temporary files), and each cell (its
socket, that of the next cell, temporarily a pipe)."""
_LEAST = 256
"""Lowest limit to advise: more than the engine needs, as objectives open files too."""


def check_descriptors(workers: int) -> None:
    """Raise EnvironmentFault if a run with `workers` cells would run out of descriptors."""
    needed = needed_by(workers)
    allowed = allow(max(needed, _LEAST))
    if allowed < needed:
        cells = f"{workers} worker{'s' * (workers > 1)}"
        raise EnvironmentFault(
            f"A run with {cells} needs {needed} open files at a time, but the limit of this "
            f"process is {allowed}. {_advice(needed)}"
        )


def needed_by(workers: int) -> int:
    """Return the number of descriptors for a run with `workers` cells, including those already
    open in this process."""
    return _open_now() + _RUN + _CELL * workers


def allow(needed: int) -> int:
    """Raise the soft limit to the hard limit if it is below `needed`, and, as root, the hard limit
    too. Return the resulting limit. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        # A hard limit that is lowered cannot be raised again.
        enough = hard == resource.RLIM_INFINITY or hard >= needed
        for limits in ((hard, hard), (needed, hard if enough else needed)):
            with contextlib.suppress(OSError, ValueError):  # the kernel's own limit; not root
                if limits[0] == resource.RLIM_INFINITY or limits[0] > soft:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    soft = limits[0]
            if soft == resource.RLIM_INFINITY or soft >= needed:
                break
    return needed if soft == resource.RLIM_INFINITY else soft


def nonblocking_pipe() -> tuple[int, int]:
    """Return the read end and the write end of a new pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


@contextlib.contextmanager
def describe_limit(what: str) -> Iterator[None]:
    """Raise OSError inside the block as an EnvironmentFault that names `what` and the remedy."""
    try:
        yield
    except OSError as error:
        raise fault(what, error) from error


def fault(what: str, error: OSError) -> EnvironmentFault:
    """Return the error to raise for a process or pipe that the system refused to create."""
    why = error.strerror or str(error)
    if error.errno == errno.EMFILE:
        advice = _advice(_open_now() + _RUN)
    else:
        advice = "Make room on the disk, or end other processes, and call again."
    return EnvironmentFault(f"{what} cannot be started ({why}). {advice}")


def _advice(needed: int) -> str:
    limit = max(_LEAST, 1 << needed.bit_length())
    return (
        f"Type `ulimit -n {limit}` and run it again. If the shell refuses that, its hard limit is "
        f"lower: use a new terminal, or have it raised (nofile in /etc/security/limits.conf)."
    )


def _open_now() -> int:
    """Return the number of open descriptors of this process; where it cannot be read, that of a
    program that has just started."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir())
    return 8
