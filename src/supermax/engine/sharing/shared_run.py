"""Several runs on one study: renew the leases of this one, and find trials of runs that are gone.

    loop ──renew_if_due()──▶ leases ──▶ trials that another run has taken over: their attempts end
         ──expired()───────▶ trials to take over

The loop of the coordinator renews the leases, not a thread: a coordinator that hangs loses them.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax import __version__
from supermax.engine.health.streaks import Fate, Streak, allowed_workers, is_bad, may_start_new
from supermax.engine.jobs.job import Job
from supermax.engine.jobs.tell import succeeded
from supermax.engine.storage import rdb
from supermax.engine.storage.lease_tables import (
    PROTOCOL,
    RUNNING,
    RunInfo,
    read_owners,
    read_runs,
)
from supermax.engine.storage.leases import Expired, FolderInUse, Leases
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder
from supermax.engine.storage.run_history import read_history
from supermax.errors import Quarantined, UserError

_RENEWALS = 4  # per lease
_LOOK_INTERVAL = 5.0  # seconds between two looks for expired leases
_FOLDER_INTERVAL = 0.5  # seconds between two looks at a run in the same folder
OWN_FOLDER = "To run beside it, give this run a folder of its own (run_dir, --run-dir)."


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
        self._judged = -math.inf
        self._streak = Streak()
        self._offered: dict[int, int] = {}
        """Number → id, of trials in the streak: they failed here, and were offered."""
        self._faults: dict[int, str] = {}
        """Number → fault, of the same trials."""

    @property
    def _interval(self) -> float:
        return self._leases.seconds / _RENEWALS

    def next_deadline(self) -> float:
        """Return the moment at which the leases are to be renewed."""
        return self._renewed + self._interval

    def renew_if_due(self) -> set[int]:
        """Renew the leases if it is time; return the ids of trials that were lost."""
        if self._clock() < self.next_deadline():
            return set()
        lost = self._storage.call(self._leases.renew)
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
        if not self._in_contact() or now - self._looked < min(_LOOK_INTERVAL, self._interval):
            return []
        self._looked = now
        found = self._storage.call(self._leases.expired)
        return found if self._in_contact() else []

    def _in_contact(self) -> bool:
        """Return whether the database could be reached for the time of a lease, until now: the
        last call may have waited for it."""
        now = self._clock()
        lately = now - self._renewed <= 2 * self._interval
        return lately and now - self._in_contact_since >= self._leases.seconds

    def take_over(self, lost: Expired) -> bool:
        return self._in_contact() and self._storage.call(self._leases.take_over, lost)

    def count_attempt(self, job: Job) -> None:
        self._storage.call(self._leases.count_attempt, job.trial._trial_id, job.attempt)

    def note(self, text: str) -> None:
        self._storage.call(self._leases.note, text)

    def end(self, *, release: bool, quarantined: str | None = None) -> None:
        self._storage.call(self._leases.end, release=release, quarantined=quarantined)

    # Trials that fail here and may succeed elsewhere.

    def may_offer(self, job: Job) -> bool:
        """Return whether to offer a trial to others that would fail: once, if others are alive."""
        if job.trial._trial_id in self._leases.second_hand:
            return False
        return self._storage.call(self._leases.has_others)

    def offer(self, job: Job) -> None:
        """Offer a trial to the other runs. It is not this one's any more."""
        trial_id = job.trial._trial_id
        self._storage.forget(trial_id)
        self._storage.call(self._leases.offer, trial_id)
        self._streak = self._streak.add(job.number)
        self._offered[job.number] = trial_id
        self._faults[job.number] = job.faults[-1].name

    def succeeded_here(self) -> None:
        """Note a success on this machine: it ends the streak of failures."""
        self._streak = Streak()

    def allowed_workers(self, workers: int) -> int:
        return allowed_workers(self._streak, workers)

    def may_start_new(self) -> bool:
        return may_start_new(self._streak)

    def judge(self) -> None:
        """Look at what became of the trials offered; raise Quarantined if this machine is bad."""
        now = self._clock()
        if not self._streak.pending or now - self._judged < min(_LOOK_INTERVAL, self._interval):
            return
        self._judged = now
        for number in self._streak.pending:
            trial = self._storage.get_trial(self._offered[number])
            self._streak = self._streak.resolve(number, self._fate(trial))
        if is_bad(self._streak):
            raise Quarantined(self._verdict())

    def _fate(self, trial: FrozenTrial) -> Fate:
        if not trial.state.is_finished():
            # Taken back, because no other run is left: then it is no evidence.
            return Fate.FAILED if trial._trial_id in self._leases.tokens else Fate.PENDING
        return Fate.SUCCEEDED if succeeded(trial) else Fate.FAILED

    def _verdict(self) -> str:
        proofs = self._streak.proofs
        numbers = ", ".join(map(str, proofs))
        kinds = ", ".join(sorted({self._faults[number] for number in proofs}))
        return (
            f"This run on {platform.node()} is quarantined: trials {numbers} failed here "
            f"({kinds}) and then succeeded in other runs. Its trials go to those runs. "
            f"`supermax doctor` checks this machine; once it is repaired, the same command "
            f"continues."
        )


@dataclass(frozen=True)
class RunOfStudy:
    """Run on a shared study, as others see it."""

    info: RunInfo
    running: tuple[int, ...]
    """Numbers of the trials it has leased: those with a process, and paused ones."""
    finished: int = 0
    """Finished trials that it owned at their end."""
    lost: tuple[int, ...] = ()
    """Numbers of trials that other runs have taken over from it."""

    @property
    def paused(self) -> int:
        """Trials without a process: it has leased more than it has workers, or has ended. If a
        worker is idle, there are more."""
        workers = self.info.workers if self.state == "running" else 0
        return max(0, len(self.running) - workers)

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
    rows = read_runs(server, study._study_id)
    if not rows:
        return []
    owners = read_owners(server, study._study_id, offered=False)
    history = read_history(server, study._study_id)
    return [
        RunOfStudy(
            row,
            tuple(sorted(n for n, run in owners.items() if run == row.run)),
            history.finished.get(row.run, 0),
            history.lost.get(row.run, ()),
        )
        for row in rows
    ]


def register(
    storage: PatientStorage, leases: Leases, folder: StudyFolder, workers: int
) -> list[RunInfo]:
    """Register this run; return the other runs on the study.

    A process on another machine that has registered the same folder is given the rest of its lease
    to show that it is alive. Raise UserError if it does."""
    first: RunInfo | None = None
    while True:
        try:
            return storage.call(leases.register, folder.path, workers, __version__, check_versions)
        except FolderInUse as error:
            row = error.row
        where = f"The run folder {row.run_dir} is used by process {row.pid} on {row.host}"
        if first is None:
            first = row
            text = f"{where}. This run waits up to {row.expires_at - row.now:.0f} s"
            storage.patience.notify(f"{text}: if that process has died, it continues then.")
        elif (row.started_at, row.seen_at) != (first.started_at, first.seen_at):
            raise UserError(f"{where}. {OWN_FOLDER}")
        time.sleep(_FOLDER_INTERVAL)  # no event announces that another machine is gone


def check_versions(others: list[RunInfo]) -> None:
    """Raise UserError if a living run follows other rules than this version."""
    for other in others:
        if other.alive and other.protocol != PROTOCOL:
            raise UserError(
                f"A run on {other.host} works on this study with Supermax {other.version}, which "
                f"cannot share a study with this version ({__version__}). Install the "
                f"same version on all machines."
            )
