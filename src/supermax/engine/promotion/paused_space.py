"""Disk space of the checkpoints of paused trials: beyond a limit, the worst trials lose theirs.

A trial without a checkpoint stays paused. If it is continued after all, it starts again: how much
disk there is changes what a trial costs, and never which trials continue.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from supermax._util.text import size_text
from supermax.engine import events
from supermax.engine.jobs.job import Job
from supermax.engine.processes.checkpoints import is_remote
from supermax.engine.storage.run_folder import StudyFolder

FEWEST = 4
"""Best paused trials that keep their checkpoints in any case: without them, every trial that
continues would start again."""


class PausedSpace:
    """Checkpoints of the paused trials of a run, and the space that they may take."""

    def __init__(self, limit: int | None, folder: StudyFolder, emit: events.Listener) -> None:
        """`limit`: bytes; None: half of what is free on that disk without these checkpoints."""
        self._limit, self._folder, self._emit = limit, folder, emit
        self._sizes: dict[int, int] = {}
        self._told = False

    def add(self, job: Job) -> None:
        """Count the checkpoint of a trial that has paused."""
        place = self._place(job)
        _remove(_dropped(place))  # a kill may have left it
        self._sizes[job.number] = _size(place)

    def discard(self, number: int) -> None:
        """Count the checkpoint of a trial no more: it is continued, or has ended."""
        self._sizes.pop(number, None)

    def make_room(self, worst_first: Iterable[Job]) -> None:
        """Remove checkpoints of paused trials until the others fit."""
        jobs = [job for job in worst_first if self._sizes.get(job.number)]
        taken = sum(self._sizes[job.number] for job in jobs)
        if len(jobs) <= FEWEST or taken <= (limit := self._allowed(jobs[-1], taken)):
            return
        for job in jobs[:-FEWEST]:
            if taken <= limit:
                break
            taken -= self._drop(job)
        if not self._told:
            self._told = True
            self._emit(events.Notice(_notice(limit, self._folder.checkpoints)))

    def _allowed(self, job: Job, taken: int) -> int:
        if self._limit is not None:
            return self._limit
        try:
            return (shutil.disk_usage(self._place(job)).free + taken) // 2
        except OSError:  # gone meanwhile
            return taken

    def _drop(self, job: Job) -> int:
        """Remove the checkpoint of a trial; return the bytes that it took. The folder is renamed
        first: after a kill, no part of it is taken for the whole."""
        place = self._place(job)
        try:
            place.rename(_dropped(place))
        except OSError:  # read-only, or of another user
            return 0
        _remove(_dropped(place))  # first: on a full disk, the ledger waits for this space
        job.folder.append({"dropped": True, "paused": True})
        return self._sizes.pop(job.number)

    def _place(self, job: Job) -> Path:
        """Return the folder with the checkpoints of a trial; with a URL, the local copy."""
        shared = self._folder.checkpoints_of(job.number)
        return job.folder.checkpoint if shared is None or is_remote(shared) else Path(shared)


def _notice(limit: int, shared: str | None) -> str:
    what, effect, disk = "checkpoints", "starts again", "the run folder (run_dir, --run-dir)"
    if shared is not None and is_remote(shared):
        what, effect = "local copies of the checkpoints", "loads its checkpoint from the URL"
    elif shared is not None:
        disk = f"{shared} (checkpoints)"
    return (
        f"The {what} of paused trials took more than {size_text(limit)}: those of the worst "
        f"trials are removed. Such a trial {effect} if it continues. With more space on the disk "
        f"of {disk}, more of them are kept."
    )


def _dropped(place: Path) -> Path:
    return place.with_name(f".{place.name}.dropped")


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total
