"""Several runs on one study: renew the leases of this one, and find trials of runs that are gone.

    loop ──renew_if_due()──▶ leases ──▶ trials that another run has taken over: their attempts end
         ──expired()───────▶ trials to take over

The loop of the coordinator renews the leases, not a thread: a coordinator that hangs loses them.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optuna.study import Study

from supermax import __version__
from supermax.engine.storage import rdb
from supermax.engine.storage.leases import (
    PROTOCOL,
    RUNNING,
    Expired,
    Leases,
    RunInfo,
    read_owners,
    read_runs,
)
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder
from supermax.errors import UserError

_RENEWALS = 4  # per lease
_LOOK_INTERVAL = 5.0  # seconds between two looks for expired leases


class SharedRun:
    """This run's part in a study that others may share."""

    def __init__(
        self,
        storage: PatientStorage,
        leases: Leases,
        clock: Callable[[], float] = time.monotonic,
        *,
        has_others: bool = False,
    ) -> None:
        """`has_others`: other runs share the study, or have done so."""
        self.has_others = has_others
        self._storage, self._leases, self._clock = storage, leases, clock
        self._renewed = clock()
        self._in_contact_since = clock()
        self._looked = -math.inf

    @property
    def _interval(self) -> float:
        return self._leases.seconds / _RENEWALS

    def next_deadline(self) -> float:
        """Return the moment at which the leases are to be renewed."""
        return self._renewed + self._interval

    def renew_if_due(self, told: int) -> set[int]:
        """Renew the leases if it is time; return the ids of trials that were lost."""
        if self._clock() < self.next_deadline():
            return set()
        lost = self._storage.call(self._leases.renew, told)
        now = self._clock()
        if now - self._renewed > 2 * self._interval:  # the database, or this run, was away
            self._in_contact_since = now
        self._renewed = now
        return lost

    def expired(self) -> list[Expired]:
        """Return the trials to take over.

        After the database was away all leases have expired. Their runs may be alive: none is taken
        over until the database could be reached for the time of a lease.
        """
        now = self._clock()
        if now - self._in_contact_since < self._leases.seconds or now - self._looked < min(
            _LOOK_INTERVAL, self._interval
        ):
            return []
        self._looked = now
        return self._storage.call(self._leases.expired)

    def take_over(self, lost: Expired) -> bool:
        return self._storage.call(self._leases.take_over, lost)

    def end(self, *, release: bool) -> None:
        self._storage.call(self._leases.end, release=release)


@dataclass(frozen=True)
class RunOfStudy:
    """Run on a shared study, as others see it."""

    info: RunInfo
    running: tuple[int, ...]
    """Numbers of the trials it has leased."""

    @property
    def state(self) -> str:
        if self.info.state != RUNNING:
            return self.info.state
        return "running" if self.info.alive else "lost"


def runs_of(study: Study) -> list[RunOfStudy]:
    """Return the runs on a study that is on a database server, the latest first; []: there are
    none, or it is in a file."""
    server = rdb.server_of(study._storage)
    if server is None:
        return []
    owners = read_owners(server, study._study_id)
    return [
        RunOfStudy(row, tuple(sorted(n for n, run in owners.items() if run == row.run)))
        for row in read_runs(server, study._study_id)
    ]


def check_versions(others: list[RunInfo]) -> None:
    """Raise UserError if a living run follows other rules than this version."""
    for other in others:
        if other.alive and other.protocol != PROTOCOL:
            raise UserError(
                f"A run on {other.host} works on this study with Supermax {other.version}, which "
                f"cannot share a study with this version ({__version__}). Install the "
                f"same version on all machines."
            )


def adopt_folder(lost: Expired, number: int, target: Path) -> bool:
    """Copy the files of a trial that is taken over, if the folder of its run can be reached;
    return whether that is so."""
    found = StudyFolder(Path(lost.run_dir))
    if found.claim() != lost.run:
        return False
    try:
        shutil.copytree(found.trial(number).path, target, dirs_exist_ok=True)
    except OSError:  # it is gone, or cannot be read by this user, or this disk is full
        return False
    return True


def takeover_notice(lost: Expired, number: int, adopted: bool) -> str:
    how = (
        "where it was" if adopted else "from its checkpoint if that is shared, else from the start"
    )
    return (
        f"Trial {number} is taken over from the run on {lost.host}, whose lease has expired. It "
        f"continues {how}."
    )
