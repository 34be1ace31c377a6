"""What of a run stays on disk: the weights of the best trials, within a budget; no resume state of
trials that have ended."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax.engine.folder import StudyFolder, TrialFolder
from supermax.errors import EnvironmentFault
from supermax.naming import STATE, WEIGHTS
from supermax.ranking import ranked


@dataclass(frozen=True)
class Keeper:
    """An Optuna callback that tidies up after each trial."""

    run_dir: Path
    top: int = 5
    budget: int | None = None
    """Bytes that weights may take; None: no limit but the top."""

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        folder = StudyFolder(self.run_dir)
        forget_state(folder.trial(trial.number))
        trials = study.get_trials(deepcopy=False)
        best = [trial.number for trial in ranked(trials, study.directions)[: self.top]]
        room = self.budget
        for number in best + self._others(trials, set(best)):
            path = folder.trial(number).path / WEIGHTS
            if not path.exists():
                continue
            size = path.stat().st_size
            if number in best and (room is None or size <= room):
                room = None if room is None else room - size
            else:
                path.unlink(missing_ok=True)

    def _others(self, trials: list[FrozenTrial], best: set[int]) -> list[int]:
        """All that are not among the best and have ended. One that still runs may have written
        its weights a moment ago: they are its own."""
        kept = best | {trial.number for trial in trials if not trial.state.is_finished()}
        found = (int(p.parent.name) for p in self.run_dir.glob(f"trials/*/{WEIGHTS}"))
        return [number for number in found if number not in kept]


def forget_state(folder: TrialFolder) -> None:
    """The state a trial would have gone on from; it has ended."""
    with contextlib.suppress(OSError):
        (folder.checkpoint / STATE).unlink(missing_ok=True)


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
