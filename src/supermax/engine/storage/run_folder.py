"""Run folder: the names of all its files, and how each is written.

run_dir/
  run.json                 format version, identity and claim of the run, study and storage
  fork_server.log          output while the objective was loaded
  status.json              state of the run for `supermax status`; replaced about once a second
  trials/00042/
    ledger.jsonl           one line per launch, fault, stop or end; the coordinator appends
    drawn.json             parameters the sampler drew together, before the objective asks for them
    curve.jsonl            one line per report; the cell appends it before it sends it
    outcome.json           outcome of the last attempt; the cell writes it atomically
    log.txt                output of all attempts, bounded
    takeover.json          run whose folder has the other files, until they have arrived here
    checkpoint/            files of the objective
  arriving/                files of a trial that is being taken over from another run
  trials/bar.json, trials/00042/weights.safetensors: of the agents, see tasks/weight_retention.py
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
from typing import IO, Any, TypedDict, cast

from supermax._util.files import make_folder, make_private, open_private, tighten, write_whole
from supermax.engine.storage.patience import Patience, Subject
from supermax.engine.trial.outcome import Outcome
from supermax.errors import EnvironmentFault, UserError

FORMAT = 1
_LASTING = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors that a retry does not cure."""
_OWN = re.compile(
    r"lock|trials|tracking|arriving|old-\d+|(run|status)\.json|(keeper|fork_server)\.log|\.(run|status)\.json\..*"
)
"""Names of the files and folders that a run creates in its folder."""

RelativeParams = dict[str, tuple[str, float]]
"""Parameters by name: the distribution as JSON text, and the value in its internal form."""


class RunFile(TypedDict, total=False):
    """Content of run.json."""

    format: int
    identity: str
    claim: str
    study: str
    storage: str


class LedgerEntry(TypedDict, total=False):
    """Line of a ledger: a launch, a fault with the decision on it, a stop, or the reason why the
    cell was not used again."""

    at: float
    """time.time() of the entry."""
    launch: int
    """Number of the attempt that starts."""
    cell: int
    reserved: int
    plan: dict[str, object]
    where: str
    why: str
    attempt: int
    """Number of the attempt that had the fault, or left its cell unclean."""
    fault: dict[str, Any]
    """Fields of Fault."""
    decision: str
    """Decision for people; the next four are its data."""
    again: bool
    replanned: bool
    blocking: bool
    offered: bool
    exit_code: int | None
    signal: int | None
    seconds: float
    last_step: int | None
    peak_rss: int | None
    kernel_oom_kills: int
    memory: dict[str, Any] | None
    """Fields of OomDetails after an out-of-memory error; the next attempt replaces the outcome."""
    traceback: str | None
    log_tail: str
    elsewhere: int
    """Number of the last attempt in runs whose folders cannot be read; `offered`: the last of them
    has offered the trial."""
    stopped: int
    """Number of the attempt that ended with its run, or paused."""
    paused: bool
    """True: it paused at a rung, and waits to be continued."""
    dropped: bool
    """True: the checkpoint of the paused trial was removed, for lack of disk space."""
    unclean: str


class TrialFolder:
    """Files of one trial. Nothing is created before the first write.

    With `patience` (in the coordinator) a failed write is retried until the folder can be written;
    readers skip the part of a line that a failed write has left.
    """

    def __init__(self, path: Path, patience: Patience | None = None) -> None:
        self.path = path
        self._patience = patience
        self.log = path / "log.txt"
        self.checkpoint = path / "checkpoint"
        self.ledger = path / "ledger.jsonl"
        self._drawn = path / "drawn.json"
        self.outcome_file = path / "outcome.json"
        self._curve = path / "curve.jsonl"
        self.takeover = path / "takeover.json"

    def append(self, entry: LedgerEntry) -> None:
        """Append a line to the ledger, and sync it to disk."""
        line = json.dumps({**entry, "at": round(time.time(), 3)})
        self._write(lambda: append_line(self.ledger, line))

    def write_records(self, lines: list[LedgerEntry]) -> None:
        """Replace the ledger."""
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        self._write(lambda: write_whole(self.ledger, text))

    def records(self) -> list[LedgerEntry]:
        """Return the lines of the ledger, without lines that a crash has torn."""
        lines = [line for line in read_lines(self.ledger) if isinstance(line, dict)]
        return cast(list[LedgerEntry], lines)

    def append_report(self, attempt: int, step: int, value: float) -> None:
        """Append a report without syncing: it survives a crash of the process, not of the
        machine."""
        line = json.dumps([attempt, step, value])
        self._write(lambda: append_line(self._curve, line, sync=False))

    def curve(self) -> dict[int, float]:
        """Return the reports as step → value: the first report of an attempt replaces those of
        earlier attempts from its step on."""
        curve: dict[int, float] = {}
        latest = 0
        for attempt, step, value in cast(list[tuple[int, int, float]], read_lines(self._curve)):
            if attempt > latest:
                curve = {s: v for s, v in curve.items() if s < step}
                latest = attempt
            curve[step] = value
        return curve

    def write_outcome(self, outcome: Outcome) -> None:
        text = json.dumps(outcome.to_json())
        self._write(lambda: write_whole(self.outcome_file, text))

    def outcome(self) -> Outcome | None:
        """Return the outcome on disk; None: there is none, or it cannot be read."""
        try:
            return Outcome.from_json(json.loads(self.outcome_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_relative_params(self, drawn: RelativeParams) -> None:
        text = json.dumps(drawn)
        self._write(lambda: write_whole(self._drawn, text))

    def relative_params(self) -> RelativeParams | None:
        try:
            drawn = json.loads(self._drawn.read_text())
        except (OSError, ValueError):
            return None
        return drawn if isinstance(drawn, dict) else None

    def _write(self, write: Callable[[], None]) -> None:
        """Create the folder if it is missing, and write; retry with patience."""
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
                        f"and call again: the run resumes."
                    ) from error
                wait.pause(why)
                if self._patience is not None:
                    self._patience.check_need()


def _writable(path: Path) -> Subject:
    return Subject(
        f"{path} to be writable",
        f"{path} could not be written",
        "Make room or make it writable",
    )


def cannot_be_written(run_dir: Path, error: Exception, *, in_home: bool = False) -> str:
    """Return the message about a run folder. `in_home`: its default is in the user's data
    folder."""
    why = getattr(error, "strerror", None) or error
    where = " or, for all studies on servers, in XDG_DATA_HOME" if in_home else ""
    return (
        f"The run folder {run_dir} cannot be written ({why}). Make it writable, or name another "
        f"one as run_dir (--run-dir){where}."
    )


def trial_checkpoints(root: str, number: int) -> str:
    """Return the folder or URL of a trial's checkpoints in that of its study."""
    return f"{root}/{number:05d}"


class StudyFolder:
    """Folder of a study's runs, private to its owner."""

    def __init__(self, path: Path, patience: Patience | None = None) -> None:
        self.path = path
        self._patience = patience
        self.trials = path / "trials"
        self.fork_server_log = path / "fork_server.log"
        self.status = path / "status.json"
        self.lock = path / "lock"
        self.arriving = path / "arriving"
        self.checkpoints: str | None = None
        """Shared folder or URL of the checkpoints of this study; None: they are here."""
        self._run = path / "run.json"

    def trial(self, number: int) -> TrialFolder:
        return TrialFolder(self.trials / f"{number:05d}", self._patience)

    def checkpoints_of(self, number: int) -> str | None:
        """Return the shared folder or URL of a trial's checkpoints; None: they are not shared."""
        return None if self.checkpoints is None else trial_checkpoints(self.checkpoints, number)

    def open(self, identity: str, study: str, storage: str) -> str:
        """Prepare the folder for the study `identity`; return the claim that marks the trials of
        runs in this folder. Runs in another folder, such as on another machine, have another.

        Files of an older, deleted study with the same name and storage are moved to a subfolder;
        nothing is removed. The folder of another study raises UserError.
        """
        try:
            if not self.path.exists():
                make_private(self.path)
            about = {"study": study, "storage": storage}
            known = self._known()
            if known is not None and known.get("identity") != identity:
                self._move_aside(known, about)
            self._restrict(known is not None)
            self.trials.mkdir(0o700, exist_ok=True)
            known = self._known() or {}
            claim = known.get("claim") or _claim_of(identity, self.path)
            content = {"format": FORMAT, "identity": identity, "claim": claim, **about}
            write_whole(self._run, json.dumps(content, indent=1))
            return str(claim)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(cannot_be_written(self.path, error)) from error

    def claim(self) -> str | None:
        """Return the claim of the runs in this folder; None: there was none, or it cannot be
        read."""
        try:
            return (self._known() or {}).get("claim")
        except OSError:
            return None

    def is_of_this_host(self) -> bool:
        """Return whether a run on this machine has made the folder."""
        try:
            known = self._known() or {}
        except OSError:
            return False
        identity = known.get("identity")
        return identity is not None and known.get("claim") == _claim_of(identity, self.path)

    def _restrict(self, known: bool) -> None:
        """Remove permissions of other users from the files of the run.

        `run_dir` may be any folder of the user: files of others in it, and then the folder itself,
        keep their permissions. `known`: a run was here before, so files with its names are its
        own.
        """
        inside = list(self.path.iterdir())
        own = [path for path in inside if known and _OWN.fullmatch(path.name)]
        alone = len(own) == len(inside) and not self.path.stat().st_mode & stat.S_ISVTX
        for path in (self.path,) if alone else own:
            if path.lstat().st_mode & 0o077:
                tighten(path)

    def _move_aside(self, known: RunFile, about: dict[str, str]) -> None:
        if known.get("format", FORMAT) > FORMAT:
            raise UserError(
                f"The run folder {self.path} was written by a newer Supermax (format "
                f"{known['format']}, this one reads {FORMAT}). Upgrade Supermax, or pass another "
                f"run_dir."
            )
        if {key: known.get(key) for key in about} != about:
            owner = f"the study '{known['study']}'" if "study" in known else "another program"
            raise UserError(
                f"The folder {self.path} holds files of {owner}. Pass another run_dir: each study "
                f"needs its own."
            )
        number = 1
        while (target := self.path / f"old-{number}").exists():
            number += 1
        make_folder(target)
        for item in (self.trials, self.fork_server_log, self._run):
            if item.exists():
                item.rename(target / item.name)

    def _known(self) -> RunFile | None:
        """Return the content of run.json; None: there is none; {}: it cannot be read."""
        if not self._run.exists():
            return None
        try:
            known = json.loads(self._run.read_text())
        except ValueError:
            return {}
        return cast(RunFile, known) if isinstance(known, dict) else {}


def append_line(path: Path, line: str, *, sync: bool = True) -> None:
    """Append a line; start a new one first if a crash has torn the last line. `sync`: to disk."""
    with open_private(path, "ab+") as file:
        if file.tell() and not _ends_with_newline(file):
            line = "\n" + line
        file.write(line.encode() + b"\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())


def read_lines(path: Path) -> list[object]:
    """Return the values of a JSON Lines file, without lines that a crash has torn."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def _ends_with_newline(file: IO[bytes]) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def new_identity() -> str:
    return uuid.uuid4().hex


def _claim_of(identity: str, path: Path) -> str:
    """Return the claim of a study in this folder; the same if the folder is created again."""
    text = f"{identity} {platform.node()} {path.resolve()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
