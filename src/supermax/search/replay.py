"""Replay of a past trial in the foreground, to debug it.

    TrialRecord ──ReplayedTrial──▶ objective in this process ──▶ values, or its own exception

The replay runs in a child process that shares the terminal, so that its parent can report the
signal of a crash.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import optuna
from optuna.trial import FixedTrial

from supermax._util import system
from supermax._util.scratch import scratch_folder
from supermax._util.text import ended, in_short, nearest
from supermax.engine.processes.fork_server import LOADING
from supermax.engine.trial.faults import signal_name
from supermax.errors import UserError
from supermax.results.records import TrialRecord

Objective = Callable[[Any], Any]
_PARENT = "SUPERMAX_REPLAY"
"""Environment variable with the parent's process number, set in the child alone."""
_FOLDER = "SUPERMAX_REPLAY_FOLDER"
"""Environment variable with a folder that the parent removes, however the child ends."""
_PREFIX = "supermax-replay-"
_CRASH_SIGNALS = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")
"""Signals on which faulthandler writes the Python stack."""


def run_child(command: Sequence[str], name: str) -> int:
    """Run the command as a child and return its exit code; 128 + N if it died of signal N.

    The signal is printed, unless this process forwarded it. The child shares the terminal, so that
    a debugger works in it."""
    with scratch_folder("replay") as folder:
        return _run_child(command, name, {_PARENT: str(os.getpid()), _FOLDER: str(folder)})


def _run_child(command: Sequence[str], name: str, env: Mapping[str, str]) -> int:
    child = subprocess.Popen(list(command), env={**os.environ, **env})
    forwarded: list[int] = []

    def forward(signum: int, _: FrameType | None) -> None:
        forwarded.append(signum)
        # A terminal sends Ctrl-C to the whole process group, the child included.
        if signum != signal.SIGINT or not os.isatty(0):
            child.send_signal(signum)

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    not_ignored = [s for s in handled if signal.getsignal(s) is not signal.SIG_IGN]  # as by nohup
    previous = {signum: signal.signal(signum, forward) for signum in not_ignored}
    try:
        code = child.wait()
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    if code >= 0:
        return code
    if -code not in forwarded:
        print(f"{name} {_describe_signal(-code)}", file=sys.stderr)
    return 128 - code


def _describe_signal(signum: int) -> str:
    name = signal_name(signum)
    if name in _CRASH_SIGNALS:
        return (
            f"died of {name} (signal {signum}). Its Python stack is above, innermost call first."
        )
    return (
        f"was ended by {name} (signal {signum}), which came from outside: from a person, from a "
        f"scheduler, or from the kernel where memory ran out. There is no Python stack."
    )


def is_child() -> bool:
    return _PARENT in os.environ


def be_child() -> None:
    """Make this child end with its parent, and write the Python stack to stderr on a crash."""
    system.die_with_parent(int(os.environ.pop(_PARENT)), signal.SIGTERM)
    faulthandler.enable(file=2)


class ReplayedTrial(FixedTrial):
    """Trial that suggests the recorded parameters, never prunes, and passes on its reports."""

    def __init__(
        self, record: TrialRecord, folder: Path, on_report: Callable[[int, float], None]
    ) -> None:
        # Parameters have one name in the objective and may have another in the storage, which a
        # Space suggests them by.
        super().__init__({**record.params, **record.trial.params}, number=record.number)
        self.checkpoint_dir = folder
        self.folder = folder.parent
        self.attempt = 1
        self.stop_requested = False
        self._on_report = on_report

    def report(self, value: float | Sequence[float], step: int) -> None:
        first = value[0] if isinstance(value, Sequence) else value
        super().report(first, step)
        self._on_report(step, first)

    def note(self, **facts: Any) -> None:
        """Ignore the facts: there is no live view."""


def replay_trial(
    objective: Objective, record: TrialRecord, on_report: Callable[[int, float], None]
) -> list[float]:
    """Run the objective on a past trial and return its values; [] if it raised TrialPruned.

    Any other exception is raised. The trial starts with an empty checkpoint folder, which is
    deleted afterwards. `on_report` is called with each step and value."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=os.environ.get(_FOLDER)) as folder:
        checkpoint = Path(folder) / "checkpoint"
        checkpoint.mkdir()
        try:
            result = objective(ReplayedTrial(record, checkpoint, on_report))
        except optuna.TrialPruned:
            return []
    return [float(value) for value in (result if isinstance(result, (list, tuple)) else [result])]


def import_objective(where: str) -> Objective:
    """Import an objective, named as program.py:objective or package.module:objective. Raises
    UserError."""
    module, colon, name = where.rpartition(":")
    if not colon or not name:
        raise UserError(f"Name the objective as FILE.py:FUNCTION, not {where!r}.")
    found = _import_module(module, name)
    if not hasattr(found, name):
        near = nearest(name, [key for key in vars(found) if not key.startswith("_")])
        raise UserError(ended(f"{module} has no {name!r}{near}"))
    objective: Objective = getattr(found, name)
    return objective


def _import_module(name: str, wanted: str) -> Any:
    """Import a module by its name or path. A UserError raised by a program that also runs its
    search when imported is ignored if the program has defined `wanted` by then."""
    path = Path(name).expanduser()
    try:
        if path.suffix != ".py":
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(name)
        if not path.is_file():
            raise UserError(f"There is no file {path}.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.absolute().parent))
        os.environ[LOADING] = "1"  # a call of optimize in the program must not start a search
        try:
            spec.loader.exec_module(module)
        except UserError:
            if not hasattr(module, wanted):
                raise
        finally:
            del os.environ[LOADING]
        return module
    except UserError:
        raise
    except Exception as error:  # importing a program may raise anything
        raise UserError(
            f"{name} cannot be imported: {type(error).__name__}: {in_short(error)}."
        ) from None
