"""Take over a trial of another run: its files are copied in a thread, its ledger is continued.

    Takeover(lost) ──thread──▶ files of the other run's folder ─▶ run folder/arriving/
                   ──finish()─▶ moved to the trial's folder ─▶ Job, as the other run left it

The loop of the coordinator renews leases meanwhile: a checkpoint may be large, and its disk slow.
Until the files have arrived, takeover.json in the trial's folder names the run that has them: if
this run ends before, its next process, or the next run that takes the trial, copies them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import optuna
from optuna.study import Study

from supermax._util.files import make_folder, write_whole
from supermax.engine.jobs.job import Job
from supermax.engine.storage.leases import Expired
from supermax.engine.storage.run_folder import StudyFolder, TrialFolder


class Takeover:
    """Trial that this run has taken and cannot launch yet. `wake` is called once it can."""

    def __init__(
        self, lost: Expired, study: Study, folder: StudyFolder, wake: Callable[[], None]
    ) -> None:
        trial = optuna.trial.Trial(study, lost.trial_id)
        self.job = Job(trial, folder.trial(trial.number))
        self.dropped = False
        """True: another run has taken the trial meanwhile."""
        self._lost, self._own = lost, folder
        self._source: StudyFolder | None = None
        self._done = threading.Event()
        self._wake = wake
        self._thread = threading.Thread(target=self._work, name="supermax-takeover", daemon=True)

    def start(self) -> None:
        """Start to copy the files, unless that has been done."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def _work(self) -> None:
        try:
            found = find_files(self._lost, self.job.number)
            source = None if found is None else StudyFolder(Path(found.run_dir))
            if source is not None and source.path == self._own.path:
                self._source = source
                return
            note_source(self.job.folder, found or self._lost)
            if source is not None and copy_files(source, self.job.number, self._own):
                self._source = source
        finally:
            self._done.set()
            self._wake()

    @property
    def _is_own(self) -> bool:
        """Return whether this run has the files: it offered the trial, or the run that took it
        ended before they had arrived there."""
        return self._source is not None and self._source.path == self._own.path

    def finish(self) -> str:
        """Have the job continue where the other run was; return a notice about it."""
        if self._source is not None and not self._is_own:
            move_files(TrialFolder(self._own.arriving), self.job.folder)
            self.job.source = self._source.trial(self.job.number)
        with contextlib.suppress(OSError):
            self.job.folder.takeover.unlink()
        self.job.take_over(self._lost.attempts, offered=self._lost.offered)
        self.job.of_other_run = Path(self._lost.run_dir) != self._own.path
        return takeover_notice(self._lost, self.job.number, self._source is not None)


def find_files(lost: Expired, number: int) -> Expired | None:
    """Return the trial with the run whose folder has its files; None: that cannot be reached. The
    folder of a run that ended before they had arrived names the run to look at."""
    passed = set[str]()
    where: Expired | None = lost
    while where is not None and where.run not in passed:
        passed.add(where.run)
        folder = StudyFolder(Path(where.run_dir))
        if folder.claim() != where.run:
            return None
        if (earlier := read_source(folder.trial(number))) is None:
            return replace(lost, run=where.run, run_dir=where.run_dir)
        where = earlier
    return None


def note_source(folder: TrialFolder, lost: Expired) -> None:
    """Write which run has the files of a trial that have not arrived yet."""
    with contextlib.suppress(OSError):  # then it starts again, should this run end now
        make_folder(folder.path)
        write_whole(folder.takeover, json.dumps(asdict(lost)))


def read_source(folder: TrialFolder) -> Expired | None:
    """Return what `note_source` has written; None: the files have arrived, or it never did."""
    try:
        return Expired(**json.loads(folder.takeover.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def copy_files(found: StudyFolder, number: int, folder: StudyFolder) -> bool:
    """Copy the files of a trial to `folder.arriving`, without checkpoints that are shared; return
    False if they cannot be read, or written."""
    source, arriving = found.trial(number), TrialFolder(folder.arriving)
    skipped = [source.outcome_file.name]
    skipped += [source.checkpoint.name] if folder.checkpoints is not None else []
    ignore = shutil.ignore_patterns(*skipped)
    shutil.rmtree(arriving.path, ignore_errors=True)
    try:
        make_folder(arriving.path)
        with contextlib.suppress(FileNotFoundError):
            # First: a cell that still runs may write it after the last report.
            shutil.copy2(source.outcome_file, arriving.outcome_file)
        shutil.copytree(source.path, arriving.path, ignore=ignore, dirs_exist_ok=True)
    except OSError:  # it is gone, or cannot be read by this user, or this disk is full
        shutil.rmtree(folder.arriving, ignore_errors=True)
        return False
    return True


def move_files(arrived: TrialFolder, target: TrialFolder) -> None:
    """Replace the files of a trial by those that have arrived. Its ledger is kept: this run may
    have had the trial before."""
    ledger = arrived.records()
    target.write_records([line for line in target.records() if line not in ledger] + ledger)
    for path in arrived.path.iterdir():
        place = target.path / path.name
        if path == arrived.ledger:
            continue
        if place.is_dir():
            shutil.rmtree(place)
        path.rename(place)
    shutil.rmtree(arrived.path, ignore_errors=True)


def takeover_notice(lost: Expired, number: int, adopted: bool) -> str:
    if lost.offered:
        return f"Trial {number}, which failed in the run on {lost.host}, is tried in this one."
    how = (
        "where it was" if adopted else "from its checkpoint if that is shared, else from the start"
    )
    return (
        f"Trial {number} is taken over from the run on {lost.host}, whose lease has expired. It "
        f"continues {how}."
    )
