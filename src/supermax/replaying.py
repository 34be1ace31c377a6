"""A trial of the past run again in this process, to see where it goes wrong.

TrialRecord ──ReplayedTrial──▶ objective, here and now ──▶ values, or the exception as it is
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FixedTrial

from supermax.engine.keeper import LOADING
from supermax.errors import UserError
from supermax.records import TrialRecord
from supermax.words import ended, in_short, nearest

Objective = Callable[[Any], Any]


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
