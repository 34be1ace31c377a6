"""Every file name of a run, and how each is written.

run_dir/
  run.json                 format version, the run's identity, study and storage
  keeper.log               what loading the objective printed
  status.json              how the run stands, for whoever looks; replaced about once a second
  trials/00042/
    ledger.jsonl           one line a launch, fault, stop or end; the coordinator appends
    drawn.json             parameters the sampler drew together, before they are asked for
    curve.jsonl            one line a report; the cell appends it before it sends it
    outcome.json           what the last attempt came to; the cell writes it, atomically
    log.txt                output of all attempts, bounded
    checkpoint/            the objective's own
  trials/bar.json, trials/00042/weights.safetensors: the agents', see agents/keeping.py
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import stat
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supermax.engine.outcome import Outcome
from supermax.engine.patience import Patience, Subject
from supermax.errors import EnvironmentFault, UserError
from supermax.files import make_folder, make_private, open_private, tighten, write_whole

FORMAT = 1
_LASTING = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors that waiting does not help against."""
_OWN = re.compile(
    r"lock|trials|tracking|old-\d+|(run|status)\.json|keeper\.log|\.(run|status)\.json\..*"
)
"""Names of what a run makes in its folder."""


class TrialFolder:
    """One trial's files. Cheap to make; nothing is created before it is written.

    With `patience`, as the coordinator has it, a write that fails is tried again until the folder
    can be written; what a failed write left of a line is skipped by readers.
    """

    def __init__(self, path: Path, patience: Patience | None = None) -> None:
        self.path = path
        self._patience = patience
        self.log = path / "log.txt"
        self.checkpoint = path / "checkpoint"
        self._ledger = path / "ledger.jsonl"
        self._drawn = path / "drawn.json"
        self._outcome = path / "outcome.json"
        self._curve = path / "curve.jsonl"

    def append(self, record: dict[str, Any]) -> None:
        """Add a line to the ledger; it is on the disk when this returns."""
        line = json.dumps({**record, "at": round(time.time(), 3)})
        self._written(lambda: append_line(self._ledger, line))

    def records(self) -> list[dict[str, Any]]:
        """The ledger's lines; a torn last one, from a crash while it was written, is left out."""
        return [record for record in read_lines(self._ledger) if isinstance(record, dict)]

    def append_report(self, attempt: int, step: int, value: float) -> None:
        """Survives this process, not the machine: it is written at every step."""
        line = json.dumps([attempt, step, value])
        self._written(lambda: append_line(self._curve, line, sync=False))

    def curve(self) -> dict[int, float]:
        """All that was reported, as the attempts that count make it: each one's first report
        ends what earlier ones have said from that step on."""
        curve: dict[int, float] = {}
        latest = 0
        for attempt, step, value in read_lines(self._curve):
            if attempt > latest:
                curve = {s: v for s, v in curve.items() if s < step}
                latest = attempt
            curve[step] = value
        return curve

    def write_outcome(self, outcome: Outcome) -> None:
        text = json.dumps(outcome.to_json())
        self._written(lambda: write_whole(self._outcome, text))

    def outcome(self) -> Outcome | None:
        """The outcome on disk, or None when there is none that can be read."""
        try:
            return Outcome.from_json(json.loads(self._outcome.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_drawn(self, drawn: dict[str, Any]) -> None:
        text = json.dumps(drawn)
        self._written(lambda: write_whole(self._drawn, text))

    def drawn(self) -> dict[str, Any] | None:
        try:
            drawn = json.loads(self._drawn.read_text())
        except (OSError, ValueError):
            return None
        return drawn if isinstance(drawn, dict) else None

    def _written(self, write: Callable[[], None]) -> None:
        """Write, in a folder that is made where it is missing."""
        wait = self._patience.wait_for(_writable(self.path)) if self._patience else None
        while True:
            try:
                make_folder(self.path)
                write()
                break
            except OSError as error:
                if wait is None:
                    raise
                why = error.strerror or str(error)
                if error.errno in _LASTING:
                    raise EnvironmentFault(
                        f"{self.path} cannot be written ({why}). Move away what is in its place "
                        f"and call again: the run goes on."
                    ) from error
                wait.pause(why)


def _writable(path: Path) -> Subject:
    return Subject(
        f"{path} to be writable",
        f"{path} could not be written",
        "Make room or make it writable",
    )


def cannot_be_written(run_dir: Path, error: Exception, *, in_home: bool = False) -> str:
    """A message about a run folder; `in_home`: it is in the user's data folder by default."""
    why = getattr(error, "strerror", None) or error
    where = " or, for all studies on servers, in XDG_DATA_HOME" if in_home else ""
    return (
        f"The run folder {run_dir} cannot be written ({why}). Free or fix it, or give a folder "
        f"that can be written as run_dir{where}."
    )


class StudyFolder:
    """A run's folder, for its owner alone."""

    def __init__(self, path: Path, patience: Patience | None = None) -> None:
        self.path = path
        self._patience = patience
        self.trials = path / "trials"
        self.keeper_log = path / "keeper.log"
        self.status = path / "status.json"
        self._run = path / "run.json"

    def trial(self, number: int) -> TrialFolder:
        return TrialFolder(self.trials / f"{number:05d}", self._patience)

    def open(self, identity: str, study: str, storage: str) -> str:
        """Make the folder the home of the study `identity`; returns the claim that marks the
        trials of runs in this folder. A run elsewhere, on another machine say, has another.

        What an older study left that had the same name and storage, and was deleted, is moved
        aside within the folder; nothing is removed and nobody else's folder is taken.
        """
        try:
            if not self.path.exists():
                make_private(self.path)
            about = {"study": study, "storage": storage}
            known = self._known()
            if known is not None and known.get("identity") != identity:
                self._take_over(known, about)
            self._close(known is not None)
            self.trials.mkdir(0o700, exist_ok=True)
            known = self._known() or {}
            claim = known.get("claim") or _claim_of(identity, self.path)
            content = {"format": FORMAT, "identity": identity, "claim": claim, **about}
            write_whole(self._run, json.dumps(content, indent=1))
            return str(claim)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(cannot_be_written(self.path, error)) from error

    def _close(self, known: bool) -> None:
        """Keep others out of what is there. `run_dir` may be any folder of the user's: what is not
        of a run in it stays as it is, and so does the folder itself then. `known`: a run was here
        before, so that what has its files' names is its own."""
        inside = list(self.path.iterdir())
        own = [path for path in inside if known and _OWN.fullmatch(path.name)]
        alone = len(own) == len(inside) and not self.path.stat().st_mode & stat.S_ISVTX
        for path in (self.path,) if alone else own:
            if path.lstat().st_mode & 0o077:
                tighten(path)

    def _take_over(self, known: dict[str, Any], about: dict[str, str]) -> None:
        if known.get("format", FORMAT) > FORMAT:
            raise UserError(
                f"The run folder {self.path} was written by a newer Supermax (format "
                f"{known['format']}, this one knows {FORMAT}). Upgrade, or give another run_dir."
            )
        if {key: known.get(key) for key in about} != about:
            whose = f"of the study '{known['study']}'" if "study" in known else "of something else"
            raise UserError(
                f"The folder {self.path} holds the run {whose}. Give each study a run_dir of its "
                f"own."
            )
        number = 1
        while (aside := self.path / f"old-{number}").exists():
            number += 1
        make_folder(aside)
        for item in (self.trials, self.keeper_log, self._run):
            if item.exists():
                item.rename(aside / item.name)

    def _known(self) -> dict[str, Any] | None:
        """What the folder says it is; None for a new one, nothing for one that is unreadable."""
        if not self._run.exists():
            return None
        try:
            known = json.loads(self._run.read_text())
        except ValueError:
            return {}
        return known if isinstance(known, dict) else {}


def append_line(path: Path, line: str, *, sync: bool = True) -> None:
    """Add a line that starts on its own, even after one that a crash tore."""
    with open_private(path, "ab+") as file:
        if file.tell() and not _ends_with_newline(file):
            line = "\n" + line
        file.write(line.encode() + b"\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())


def read_lines(path: Path) -> list[Any]:
    """A file of JSON lines, without those that a crash tore."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def new_identity() -> str:
    return uuid.uuid4().hex


def _claim_of(identity: str, path: Path) -> str:
    """The same again if the folder is removed and made anew."""
    place = f"{identity} {platform.node()} {path.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
