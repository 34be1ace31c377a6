"""Weights of the best trials on disk, within a budget. Checkpoints of ended trials are removed.

study ──WeightRetention, after each trial──▶ BAR file ──worth_keeping(), in a cell──▶ weights
Demand, free space ──within_disk(), before a run──▶ Allowance
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from supermax._util.attributes import HALF_WRITTEN, STATE, WEIGHTS
from supermax._util.files import write_whole
from supermax._util.text import counted, size_text
from supermax.engine.ranking import front, place, ranked
from supermax.engine.storage.run_folder import StudyFolder, TrialFolder
from supermax.errors import EnvironmentFault
from supermax.memory.disk import Allowance, Demand, allowance

BAR = "bar.json"
"""File beside the trials' folders with the rank of the worst trial that is kept.

It exists once `top` trials are kept."""
_LOOK_EVERY = 100  # trials after which all folders are searched for weights


@dataclass
class WeightRetention:
    """Optuna callback that keeps the weights of the best trials only.

    It looks at trials that have ended since the last call, and at weights that it knows of: its
    cost does not grow with the study.
    """

    run_dir: Path
    top: int = 5
    """Trials whose weights are kept; 0: none."""
    budget: int | None = None
    """Bytes that weights may take; None: only `top` limits them."""
    _best: list[FrozenTrial] = field(default_factory=list, init=False)
    _seen: int = field(default=0, init=False)  # trials
    _unfinished: set[int] = field(default_factory=set, init=False)  # of these
    _written: set[int] = field(default_factory=set, init=False)  # numbers of trials with weights
    _calls: int = field(default=0, init=False)

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        folder = StudyFolder(self.run_dir)
        forget_attempts(folder.trial(trial.number))
        kept = self._ranked(study)[: self.top]
        self._write_bar(folder.trials / BAR, kept, study.directions)
        best, room = [trial.number for trial in kept], self.budget
        for number in best + self._others(trial.number, set(best)):
            path = folder.trial(number).path / WEIGHTS
            if not path.exists():
                self._written.discard(number)
                continue
            size = path.stat().st_size
            if number in best and (room is None or size <= room):
                room = None if room is None else room - size
                self._written.add(number)
            else:
                with contextlib.suppress(OSError):  # read-only: retried after the next trial
                    path.unlink(missing_ok=True)

    def _ranked(self, study: Study) -> list[FrozenTrial]:
        """Return the best trials and those that have ended since the last call, best first. Others
        cannot become better: they stay behind the trials that were better than they are."""
        trials = study.get_trials(deepcopy=False)
        changed = [*sorted(self._unfinished), *range(self._seen, len(trials))]
        self._seen = len(trials)
        self._unfinished = {n for n in changed if not trials[n].state.is_finished()}
        order = ranked([*self._best, *(trials[n] for n in changed)], study.directions)
        best = {id(trial) for trial in front(order, study.directions)}
        self._best = [t for i, t in enumerate(order) if i < self.top or id(t) in best]
        return order

    def _write_bar(
        self, path: Path, kept: list[FrozenTrial], directions: Sequence[StudyDirection]
    ) -> None:
        """Write the rank of the worst kept trial. With several objectives ranks do not exist."""
        if len(directions) > 1 or not kept or len(kept) < self.top:
            return
        worst, direction = kept[-1], directions[0]
        bar = place(worst.values[0], worst.number, direction)
        text = json.dumps({"top": self.top, "direction": direction.name, "bar": bar})
        with contextlib.suppress(OSError):  # trials then write weights that are removed again
            if not path.exists() or path.read_text() != text:
                write_whole(path, text)

    def _others(self, ended: int, best: set[int]) -> list[int]:
        """Return ended trials that may have weights and are not among the best.

        A running trial may have just written its weights, before its value is known. Now and then
        all folders are looked at: a trial that was taken over by another run has left its own.
        """
        if self._calls % _LOOK_EVERY == 0:
            found = self.run_dir.glob(f"trials/*/{WEIGHTS}")
            self._written |= {int(path.parent.name) for path in found}
        self._calls += 1
        self._written.add(ended)
        return sorted(self._written - best - self._unfinished)


def worth_keeping(trials: Path, top: int, value: float, number: int) -> bool:
    """Return False if the weights of a trial with this value cannot be among the `top`.

    The bar only rises, so a trial below it will never be kept. Without a bar, or with one for
    another `top`, every trial may be. `trials` is the folder of the run's trials.
    """
    if not top:
        return False
    try:
        facts = json.loads((trials / BAR).read_text())
        bar, direction = tuple(facts["bar"]), StudyDirection[facts["direction"]]
        return bool(facts["top"] != top or place(value, number, direction) <= bar)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def forget_attempts(folder: TrialFolder) -> None:
    """Remove the checkpoint of a trial that has ended, and weights that were not fully written."""
    with contextlib.suppress(OSError):
        (folder.checkpoint / STATE).unlink(missing_ok=True)
        (folder.path / HALF_WRITTEN).unlink(missing_ok=True)


def room(run_dir: Path) -> int:
    """Return the bytes on disk for weights and checkpoints of a run, existing ones included."""
    existing = [*run_dir.glob(f"trials/*/{WEIGHTS}"), *run_dir.glob(f"trials/*/*/{STATE}")]
    taken = 0
    for path in existing:
        with contextlib.suppress(FileNotFoundError):  # a trial has just ended
            taken += path.stat().st_size
    return shutil.disk_usage(nearest_existing(run_dir)).free + taken


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def on_same_disk(one: Path, other: Path) -> bool:
    """Return whether two folders are on the same disk, or would be."""
    return nearest_existing(one).stat().st_dev == nearest_existing(other).stat().st_dev


def within_disk(
    demand: Demand, run_dir: Path, elsewhere: str, alone: Mapping[str, Demand]
) -> tuple[Allowance, str]:
    """Return as much of the demand as the disk has room for, and a notice if that is less.

    Raises EnvironmentFault if there is no room for one trial. `elsewhere` says how to put the run
    on another disk. `alone` is the demand of each encoder by itself.
    """
    has, there = room(run_dir), nearest_existing(run_dir)
    found = allowance(demand, has)
    if found is None:
        raise EnvironmentFault(_no_room(demand, has, there, elsewhere, alone))
    if found.workers == demand.workers and found.keep == demand.keep:
        return found, ""
    lines = [
        f"{there} has room for {size_text(has)} of checkpoints and weights, and "
        f"{counted(demand.workers, 'trial')} at a time with the weights of the best {demand.top} "
        f"may take {size_text(demand.total)}: {found.workers} "
        f"{'runs' if found.workers == 1 else 'run'} at a time."
    ]
    if found.keep is not None and found.keep != demand.keep:
        lines.append(f"Weights of the best may take {size_text(found.keep)}.")
    advice = [f"free {_up(demand.total - has)}", elsewhere]
    if (keep := (has - demand.states - demand.pauses) >> 20) > demand.largest >> 20:
        advice.append(f"keep less (--set keep={keep}MiB)")
    lines.append(f"To have all of it, {', or '.join(advice)}.")
    return found, " ".join(lines)


def _no_room(
    demand: Demand, has: int, there: Path, elsewhere: str, alone: Mapping[str, Demand]
) -> str:
    one = replace(demand, workers=1, keep=demand.largest)
    advice = [f"Free {_up(one.total - has)}", elsewhere]
    smaller = [name for name, part in alone.items() if allowance(part, has) is not None]
    if smaller:
        advice.append(f"search smaller encoders only (--models {','.join(smaller)})")
    if demand.paused and allowance(replace(demand, paused=0), has) is not None:
        advice.append("choose a pruner that does not keep paused trials (--pruner median)")
    return (
        f"{there} has room for {size_text(has)} of checkpoints and weights, and one trial at a "
        f"time with the weights of the best one may take {size_text(one.total)}. "
        f"{', or '.join(advice)}."
    )


def _up(size: int) -> str:
    """Return the size in GiB, rounded up so that it is enough."""
    return f"{math.ceil(10 * size / (1 << 30)) / 10:.1f} GiB"
