"""Record of what was sent to a tracker, as append-only lines in the run folder.

A kill at any moment leaves a readable file. The record only saves requests: the contents of
the tracker are authoritative.

run_dir/tracking/
  <destination>.jsonl    the experiment, the run of the study, and lines for the run of each trial
  <destination>.json     state: sent, left, the last error
  <destination>.lock     held by the one process that sends
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from optuna.trial import FrozenTrial

from supermax._util.files import make_private, open_private, write_whole
from supermax.engine.storage.run_folder import append_line, read_lines
from supermax.errors import EnvironmentFault, UserError


@dataclass
class Record:
    """Contents of the record: read once, then updated by the process that holds the lock."""

    path: Path
    study: str
    """Key of the study: a deleted study may have had the same name."""
    experiment: str | None = None
    parent: str | None = None
    runs: dict[int, str] = field(default_factory=dict)
    """Id of the run of each trial, where known, by trial number."""
    unconfirmed: Counter[int] = field(default_factory=Counter)
    """Requests to create a run that got no answer, by trial number. Their runs may exist."""
    done: set[int] = field(default_factory=set)
    """Numbers of the trials that are sent completely."""
    _foreign: bool = False  # while lines of another study are read

    def note_parent(self, experiment: str, parent: str) -> None:
        self._note({"study": self.study, "experiment": experiment, "parent": parent})

    def note_requested(self, trial: int) -> None:
        self._note({"trial": trial, "asking": True})

    def note_created(self, trial: int, run: str) -> None:
        """Confirm the last request."""
        self._note({"trial": trial, "run": run, "made": True})

    def note_found(self, trial: int, run: str) -> None:
        self._note({"trial": trial, "run": run})

    def note_done(self, trial: int) -> None:
        self._note({"trial": trial, "done": True})

    def reset(self) -> None:
        """Forget everything: the tracker's database is another one, without these runs."""
        self._note({"anew": True})

    def _note(self, line: Mapping[str, object]) -> None:
        append_line(self.path, json.dumps(line), sync=False)
        self.apply(line)

    def apply(self, line: object) -> None:
        """Update the contents by a line; an unknown line is ignored."""
        match line:
            case {"anew": True}:
                self.experiment = self.parent = None
                self.runs, self.unconfirmed, self.done = {}, Counter(), set()
            case {"study": str(study), "experiment": str(experiment), "parent": str(parent)}:
                if study != self.study or self._foreign:
                    self.apply({"anew": True})
                self._foreign = study != self.study
                if not self._foreign:
                    self.experiment, self.parent = experiment, parent
            case _ if self._foreign:
                pass
            case {"trial": int(trial), "asking": True}:
                self.unconfirmed[trial] += 1
            case {"trial": int(trial), "run": str(run), **more}:
                self.runs[trial] = run
                self.unconfirmed[trial] -= "made" in more
            case {"trial": int(trial), "done": True}:
                self.done.add(trial)


@dataclass(frozen=True)
class Standing:
    """State of the tracking."""

    sent: int = 0
    """Trials that this process has sent completely."""
    left: int = 0
    """Finished trials that are not sent yet."""
    trouble: str | None = None
    """Last error or notice; None without one."""
    at: float = 0.0
    """Unix time."""


@dataclass(frozen=True)
class TrackingFolder:
    """Files of the tracking of a study to one destination."""

    path: Path
    name: str
    """Digest of the destination."""

    def record(self, study: str) -> Record:
        """Read the record of the study with this key."""
        path = self.path / f"{self.name}.jsonl"
        record = Record(path, study)
        for line in read_lines(path):
            record.apply(line)
        return record

    def make(self) -> None:
        try:
            make_private(self.path)
        except OSError as error:
            raise EnvironmentFault(
                f"The folder {self.path}, which records what was sent to trackers, cannot be "
                f"created ({error.strerror})."
            ) from error

    def write_standing(self, standing: Standing) -> None:
        text = json.dumps({**asdict(standing), "at": round(time.time(), 1)})
        with contextlib.suppress(OSError):  # such as a full disk: only this display is lost
            write_whole(self.path / f"{self.name}.json", text)

    def standing(self) -> Standing:
        try:
            return Standing(**json.loads((self.path / f"{self.name}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return Standing()

    @contextlib.contextmanager
    def locked(self, *, wait: bool) -> Iterator[None]:
        """Hold the lock of the one process that sends; the kernel releases it when it dies.

        `wait` waits while another process holds it; otherwise UserError is raised.
        """
        self.make()
        with open_private(self.path / f"{self.name}.lock", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                file.seek(0)
                raise UserError(
                    f"Process {file.read().strip() or 'unknown'} is sending this study's trials "
                    f"right now. Run this command again when it has ended."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def unsent(trials: Iterable[FrozenTrial], record: Record) -> int:
    """Return the number of finished trials that are not completely sent yet."""
    return sum(t.state.is_finished() and t.number not in record.done for t in trials)
