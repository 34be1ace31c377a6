"""What of a run stays on disk: the weights of the best trials, within a budget; no resume state of
trials that have ended.

    study ──Keeper, after each trial──▶ the least that is kept, a file ──worth_keeping()──▶ weights
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
from supermax.naming import STATE, WEIGHTS
from supermax.ranking import ranked

LEAST = "kept.json"
"""In a run's folder: the worst value whose weights are kept, once there are as many as may be."""


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
        kept = ranked(trials, study.directions)[: self.top]
        self._say(study, kept)
        best, room = [trial.number for trial in kept], self.budget
        for number in best + self._others(trials, set(best)):
            path = folder.trial(number).path / WEIGHTS
            if not path.exists():
                continue
            size = path.stat().st_size
            if number in best and (room is None or size <= room):
                room = None if room is None else room - size
            else:
                path.unlink(missing_ok=True)

    def begin(self, study: Study) -> None:
        """Before a run: what an earlier one said may be of another `top`."""
        kept = ranked(study.get_trials(deepcopy=False), study.directions)[: self.top]
        (self.run_dir / LEAST).unlink(missing_ok=True)
        self._say(study, kept)

    def _say(self, study: Study, kept: list[FrozenTrial]) -> None:
        """What a trial must come to from now on. Of several objectives nothing is said: who is on
        the front is nobody's value alone."""
        if len(study.directions) > 1 or len(kept) < self.top:
            return
        facts = {"value": kept[-1].value, "direction": study.direction.name}
        with contextlib.suppress(OSError):  # more is written, then, and removed again
            write_whole(self.run_dir / LEAST, json.dumps(facts))

    def _others(self, trials: list[FrozenTrial], best: set[int]) -> list[int]:
        """All that are not among the best and have ended. One that still runs may have written
        its weights a moment ago: they are its own."""
        kept = best | {trial.number for trial in trials if not trial.state.is_finished()}
        found = (int(p.parent.name) for p in self.run_dir.glob(f"trials/*/{WEIGHTS}"))
        return [number for number in found if number not in kept]


def worth_keeping(values: Sequence[float], run_dir: Path) -> bool:
    """Whether a trial's weights may stay. One that is worse than all that are kept never will:
    the least that is kept only gets better. Where nothing is said they may."""
    try:
        facts = json.loads((run_dir / LEAST).read_text())
        least, up = float(facts["value"]), facts["direction"] == StudyDirection.MAXIMIZE.name
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return len(values) > 1 or (values[0] >= least if up else values[0] <= least)


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
