"""What was sent, beside the run: a line is added for every step, so a kill at any instant leaves
a file that can be read. It saves questions; what MLflow itself has is what counts.

run_dir/tracking/
  <destination>.jsonl    the experiment, the study's run, and a line for each trial's
  <destination>.json     how it stands: sent, left, the last trouble
  <destination>.lock     held by the one process that sends
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from supermax.engine.folder import append_line, read_lines
from supermax.errors import EnvironmentFault, UserError
from supermax.files import make_private, open_private, write_whole


@dataclass
class Record:
    """Read once, then kept up to date by whoever holds the lock."""

    path: Path
    study: str
    """Which study it is about: one that was deleted may have had the same name."""
    experiment: str | None = None
    parent: str | None = None
    runs: dict[int, str] = field(default_factory=dict)
    """Trials whose run is known, by number."""
    unanswered: Counter[int] = field(default_factory=Counter)
    """How many runs were asked for, by trial, without an answer: there may be more than one."""
    done: set[int] = field(default_factory=set)
    _foreign: bool = False  # while lines are read that are about another study

    def note_parent(self, experiment: str, parent: str) -> None:
        self._note({"study": self.study, "experiment": experiment, "parent": parent})

    def note_asking(self, trial: int) -> None:
        self._note({"trial": trial, "asking": True})

    def note_made(self, trial: int, run: str) -> None:
        """The answer."""
        self._note({"trial": trial, "run": run, "made": True})

    def note_found(self, trial: int, run: str) -> None:
        self._note({"trial": trial, "run": run})

    def note_done(self, trial: int) -> None:
        self._note({"trial": trial, "done": True})

    def begin_anew(self) -> None:
        """MLflow's database is another one: nothing of what was sent is there."""
        self._note({"anew": True})

    def _note(self, line: dict[str, Any]) -> None:
        append_line(self.path, json.dumps(line), sync=False)
        self.take(line)

    def take(self, line: Any) -> None:
        match line:
            case {"anew": True}:
                self.experiment = self.parent = None
                self.runs, self.unanswered, self.done = {}, Counter(), set()
            case {"study": str(study), "experiment": str(experiment), "parent": str(parent)}:
                if study != self.study or self._foreign:
                    self.take({"anew": True})
                self._foreign = study != self.study
                if not self._foreign:
                    self.experiment, self.parent = experiment, parent
            case _ if self._foreign:
                pass
            case {"trial": int(trial), "asking": True}:
                self.unanswered[trial] += 1
            case {"trial": int(trial), "run": str(run), **more}:
                self.runs[trial] = run
                self.unanswered[trial] -= "made" in more
            case {"trial": int(trial), "done": True}:
                self.done.add(trial)


@dataclass(frozen=True)
class Standing:
    """How the sending goes, for whoever asks."""

    sent: int = 0
    left: int = 0
    trouble: str | None = None
    at: float = 0.0


@dataclass(frozen=True)
class TrackingFolder:
    path: Path
    name: str
    """The destination's digest."""

    def record(self, study: str) -> Record:
        """Of the study with this key."""
        path = self.path / f"{self.name}.jsonl"
        record = Record(path, study)
        for line in read_lines(path):
            record.take(line)
        return record

    def make(self) -> None:
        try:
            make_private(self.path)
        except OSError as error:
            raise EnvironmentFault(
                f"{self.path} cannot be made ({error.strerror}). What was sent is noted there."
            ) from error

    def write_standing(self, standing: Standing) -> None:
        text = json.dumps({**asdict(standing), "at": round(time.time(), 1)})
        with contextlib.suppress(OSError):  # a full disk: nothing is lost but this
            write_whole(self.path / f"{self.name}.json", text)

    def standing(self) -> Standing:
        try:
            return Standing(**json.loads((self.path / f"{self.name}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return Standing()

    @contextlib.contextmanager
    def locked(self, *, wait: bool) -> Iterator[None]:
        """For one process at a time; the kernel lets go when it dies. `wait`: for as long as
        another one sends; otherwise UserError."""
        self.make()
        with open_private(self.path / f"{self.name}.lock", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                file.seek(0)
                raise UserError(
                    f"Process {file.read().strip() or 'unknown'} is sending this study's trials "
                    f"right now. Look again when it has ended."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def unsent(trials: Iterable[FrozenTrial], record: Record) -> int:
    """Finished trials that are not in MLflow yet, or not whole."""
    return sum(t.state.is_finished() and t.number not in record.done for t in trials)
