"""Take over a trial of another run: its files are copied in a thread, its ledger is continued.

    Takeover(lost) ──thread──▶ files of the other run's folder ─▶ run folder/arriving/
                   ──finish()─▶ moved to the trial's folder ─▶ Job, as the other run left it

The loop of the coordinator renews leases meanwhile: a checkpoint may be large, and its disk slow.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.study import Study

from supermax._util.files import make_folder
from supermax.engine.run.job import Job
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
        self._copied = False
        self._done = threading.Event()
        self._wake = wake
        threading.Thread(target=self._work, name="supermax-takeover", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def _work(self) -> None:
        try:
            if not self._is_own:
                self._copied = copy_files(self._lost, self.job.number, self._own)
        finally:
            self._done.set()
            self._wake()

    @property
    def _is_own(self) -> bool:
        """Return whether this run has offered the trial, and no other run has taken it."""
        return Path(self._lost.run_dir) == self._own.path

    def finish(self) -> str:
        """Have the job continue where the other run was; return a notice about it."""
        if self._copied:
            move_files(TrialFolder(self._own.arriving), self.job.folder)
            self.job.source = StudyFolder(Path(self._lost.run_dir)).trial(self.job.number)
        self.job.take_over(self._lost.attempts, offered=self._lost.offered)
        self.job.of_other_run = not self._is_own
        return takeover_notice(self._lost, self.job.number, self._copied or self._is_own)


def copy_files(lost: Expired, number: int, folder: StudyFolder) -> bool:
    """Copy the files of a trial to `folder.arriving`, without checkpoints that are shared; return
    False if the folder of its run cannot be reached."""
    found = StudyFolder(Path(lost.run_dir))
    if found.claim() != lost.run:
        return False
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
