"""A trial of the past run again, to see where it goes wrong.

    TrialRecord ──ReplayedTrial──▶ objective, here and now ──▶ values, or the exception as it is

It runs in a child, on the terminal of its parent: a process that died of a signal cannot tell.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import optuna
from optuna.trial import FixedTrial

from supermax.engine import kernel
from supermax.engine.faults import signal_name
from supermax.engine.keeper import LOADING
from supermax.errors import UserError
from supermax.records import TrialRecord
from supermax.words import ended, in_short, nearest

Objective = Callable[[Any], Any]
_PARENT = "SUPERMAX_REPLAY"
_WITH_STACK = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")
"""Signals at which faulthandler writes the Python stack."""


def run_child(command: Sequence[str], name: str) -> int:
    """Run the command as a child; return its exit code, 128 + N where it died of signal N, which
    is then printed. The child has this terminal, so that a debugger in it works."""
    child = subprocess.Popen(list(command), env={**os.environ, _PARENT: str(os.getpid())})
    passed_on: list[int] = []

    def pass_on(signum: int, _: FrameType | None) -> None:
        passed_on.append(signum)
        if signum != signal.SIGINT or not os.isatty(0):  # which sends it to the child too
            child.send_signal(signum)

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [s for s in handled if signal.getsignal(s) is not signal.SIG_IGN]  # nohup's stays
    before = {signum: signal.signal(signum, pass_on) for signum in heeded}
    try:
        code = child.wait()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if code >= 0:
        return code
    if -code not in passed_on:
        print(f"{name} {_died_of(-code)}", file=sys.stderr)
    return 128 - code


def _died_of(signum: int) -> str:
    name = signal_name(signum)
    if name in _WITH_STACK:
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
    """End with the parent, and write the Python stack to standard error at a crash."""
    kernel.die_with_parent(int(os.environ.pop(_PARENT)), signal.SIGTERM)
    faulthandler.enable(file=2)


class ReplayedTrial(FixedTrial):
    """Suggests what the trial had, never prunes, and says what it reports."""

    def __init__(
        self, record: TrialRecord, folder: Path, tell: Callable[[int, float], None]
    ) -> None:
        # Under the names of the objective and of the storage: a space asks by the latter.
        super().__init__({**record.params, **record.trial.params}, number=record.number)
        self.checkpoint_dir = folder
        self.attempt = 1
        self.stop_requested = False
        self._tell = tell

    def report(self, value: float, step: int) -> None:
        super().report(value, step)
        self._tell(step, value)

    def note(self, **facts: Any) -> None:
        """Nobody is looking."""


def replay(
    objective: Objective, record: TrialRecord, tell: Callable[[int, float], None]
) -> list[float]:
    """The values it comes to now. What the objective raises is raised; a pruned trial has none.
    Its checkpoints start from nothing, and nothing of it is kept."""
    with tempfile.TemporaryDirectory(prefix="supermax-replay-") as folder:
        place = Path(folder) / "checkpoint"
        place.mkdir()
        try:
            result = objective(ReplayedTrial(record, place, tell))
        except optuna.TrialPruned:
            return []
    return [float(value) for value in (result if isinstance(result, (list, tuple)) else [result])]


def load_objective(where: str) -> Objective:
    """`program.py:objective`, or `package.module:objective`. Raises UserError."""
    module, colon, name = where.rpartition(":")
    if not colon or not name:
        raise UserError(f"Name the objective as FILE.py:FUNCTION, not {where!r}.")
    found = _module(module, name)
    if not hasattr(found, name):
        near = nearest(name, [key for key in vars(found) if not key.startswith("_")])
        raise UserError(ended(f"{module} has no {name!r}{near}"))
    objective: Objective = getattr(found, name)
    return objective


def _module(name: str, wanted: str) -> Any:
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
        os.environ[LOADING] = "1"  # a program that searches when it is run does not search now
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
    except Exception as error:  # whatever importing a program raises
        raise UserError(
            f"{name} cannot be imported: {type(error).__name__}: {in_short(error)}."
        ) from None
