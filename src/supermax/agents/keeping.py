"""What of a run stays on disk: the weights of the best trials, within a budget; no resume state of
trials that have ended.

    study ──Keeper, after each trial──▶ the bar, a file ──worth_keeping(), in a cell──▶ weights
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from supermax.engine.folder import StudyFolder, TrialFolder
from supermax.errors import EnvironmentFault
from supermax.files import write_whole
from supermax.naming import HALF_WRITTEN, STATE, WEIGHTS
from supermax.ranking import place, ranked

BAR = "bar.json"
"""Beside the folders of a run's trials: the place of the worst that is kept, once there are as
many as may be."""


@dataclass(frozen=True)
class Keeper:
    """An Optuna callback that tidies up after each trial."""

    run_dir: Path
    top: int = 5
    budget: int | None = None
    """Bytes that weights may take; None: no limit but the top."""

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        folder = StudyFolder(self.run_dir)
        forget_attempts(folder.trial(trial.number))
        trials = study.get_trials(deepcopy=False)
        kept = ranked(trials, study.directions)[: self.top]
        self._raise_bar(folder.trials / BAR, kept, study.directions)
        best, room = [trial.number for trial in kept], self.budget
        for number in best + self._others(trials, set(best)):
            path = folder.trial(number).path / WEIGHTS
            if not path.exists():
                continue
            size = path.stat().st_size
            if number in best and (room is None or size <= room):
                room = None if room is None else room - size
            else:
                with contextlib.suppress(OSError):  # read-only for now: it goes after the next one
                    path.unlink(missing_ok=True)

    def _raise_bar(
        self, path: Path, kept: list[FrozenTrial], directions: Sequence[StudyDirection]
    ) -> None:
        """Of several objectives there is none: no value alone says who is on the front."""
        if len(directions) > 1 or not kept or len(kept) < self.top:
            return
        worst, direction = kept[-1], directions[0]
        bar = place(worst.values[0], worst.number, direction)
        words = json.dumps({"top": self.top, "direction": direction.name, "bar": bar})
        with contextlib.suppress(OSError):  # more is written, then, and removed again
            if not path.exists() or path.read_text() != words:
                write_whole(path, words)

    def _others(self, trials: list[FrozenTrial], best: set[int]) -> list[int]:
        """All that are not among the best and have ended. One that still runs may have written
        its weights a moment ago: they are its own."""
        kept = best | {trial.number for trial in trials if not trial.state.is_finished()}
        found = (int(p.parent.name) for p in self.run_dir.glob(f"trials/*/{WEIGHTS}"))
        return [number for number in found if number not in kept]


def worth_keeping(trials: Path, top: int, value: float, number: int) -> bool:
    """Whether the weights of a trial that has come to this value may be among the `top`. Below the
    bar they never will: it only rises. Where there is none yet, or one for another `top`, they
    may. `trials`: the folder of a run's."""
    try:
        facts = json.loads((trials / BAR).read_text())
        bar, direction = tuple(facts["bar"]), StudyDirection[facts["direction"]]
        return bool(facts["top"] != top or place(value, number, direction) <= bar)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def forget_attempts(folder: TrialFolder) -> None:
    """The state a trial would have gone on from, and weights that an attempt did not finish: it
    has ended."""
    with contextlib.suppress(OSError):
        (folder.checkpoint / STATE).unlink(missing_ok=True)
        (folder.path / HALF_WRITTEN).unlink(missing_ok=True)


def check_room(run_dir: Path, needed: int) -> None:
    """Before a run: is there room for the weights and states it will keep?"""
    folder = run_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentFault(
            f"{folder} has {free / 1e9:.1f} GB free, and the run may keep {needed / 1e9:.1f} GB "
            f"of weights and states there. Make room, or keep the weights of fewer trials."
        )
