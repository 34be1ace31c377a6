"""Shared checkpoints of a search: their disk, and their removal when a trial has ended."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax.engine.processes.checkpoints import is_remote, remove_checkpoints
from supermax.engine.run.session import IDENTITY
from supermax.engine.storage.locations import checkpoint_folder
from supermax.engine.storage.run_folder import trial_checkpoints
from supermax.tasks.weight_retention import on_same_disk


def on_another_disk(checkpoints: str | os.PathLike[str] | None, run_dir: Path) -> bool:
    """Return whether checkpoints take no space on the disk of the run folder. Those at a URL do:
    the run folder has a copy of them."""
    if checkpoints is None or is_remote(place := os.fspath(checkpoints)):
        return False
    return not on_same_disk(Path(place), run_dir)


class SharedCheckpoints:
    """Optuna callback that removes the checkpoints of a trial that has ended. They are of no use
    any more: the weights of the best trials are in the run folder."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """`place`: shared folder or URL of the checkpoints of all studies."""
        found = os.fspath(place)
        self._place = found if is_remote(found) else str(Path(found).absolute())

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        identity = study._storage.get_study_system_attrs(study._study_id)[IDENTITY]
        whole = checkpoint_folder(self._place, study.study_name, str(identity))
        root = trial_checkpoints(whole, trial.number)
        if is_remote(root):  # this may take long
            threading.Thread(target=remove_checkpoints, args=(root,), daemon=True).start()
        else:
            remove_checkpoints(root)
