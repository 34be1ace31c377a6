"""Open files: how many a run needs, the limit raised where it can be, and what to type otherwise.

Every process has a soft limit, which it may raise itself, up to a hard one, which only root may.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator
from pathlib import Path

from supermax.errors import EnvironmentFault

_RUN, _CELL = 24, 3
"""Descriptors of a run (locks, the database, the selector, a few in passing), and of each cell
(its socket, the next cell's, a pipe for a moment)."""
_LEAST = 256
"""The limit that is advised: more than the engine needs, as objectives open files too."""


def check(workers: int) -> None:
    """Raise EnvironmentFault where a run with so many cells would run out of descriptors."""
    needed = needed_by(workers)
    allowed = allow(max(needed, _LEAST))
    if allowed < needed:
        cells = f"{workers} worker{'s' * (workers > 1)}"
        raise EnvironmentFault(
            f"A run with {cells} needs {needed} open files at a time, and this process may have "
            f"{allowed}. {_advice(needed)}"
        )


def needed_by(workers: int) -> int:
    """Descriptors of a run with so many cells, those that are open in this process included."""
    return _open_now() + _RUN + _CELL * workers


def allow(needed: int) -> int:
    """Raise the soft limit of this process to the hard one where it is below `needed`; root can
    raise that too. Returns the limit that holds then. Processes it starts inherit it."""
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


@contextlib.contextmanager
def in_words(what: str) -> Iterator[None]:
    """Turn an error of the system, while something is started, into a sentence that helps."""
    try:
        yield
    except OSError as error:
        raise fault(what, error) from error


def fault(what: str, error: OSError) -> EnvironmentFault:
    """Return the error to raise for something that the system refused to start."""
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
    """Descriptors that are open in this process; where that cannot be seen, those of a program
    that has only just begun."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir())
    return 8
