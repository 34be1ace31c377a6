"""Checkpoints of the Trainer in a trial's folder, and the models that a search keeps."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.ranking import front, ranked
from supermax.engine.storage.run_folder import StudyFolder

MODEL = "model"
"""Folder in a trial's folder with its trained model."""
_STATE = "trainer_state.json"
_OPTIMIZER = "optimizer.pt"


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a Trainer below a folder; None: there is none. The
    state is the last file of a checkpoint that the Trainer writes."""
    found = [(step, path) for path in folder.rglob("checkpoint-*") if (step := _step_of(path))]
    return max(found)[1] if found else None


def _step_of(checkpoint: Path) -> int | None:
    """Return the step of a checkpoint; None: it is not complete."""
    if not (checkpoint / _OPTIMIZER).exists():
        return None
    try:
        return int(json.loads((checkpoint / _STATE).read_text())["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_metrics(state: Any) -> dict[str, float] | None:
    """Return the metrics of the evaluation at the last step of a training, as the Trainer's
    `evaluate` returned them; None: there was none."""
    metrics: dict[str, float] = {}
    for entry in state.log_history:
        if entry.get("step") == state.global_step and any(k.startswith("eval_") for k in entry):
            metrics |= {name: value for name, value in entry.items() if name != "step"}
    return metrics or None


@dataclass
class ModelRetention:
    """Optuna callback: remove checkpoints of ended trials, and models of all but the best."""

    run_dir: Path

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        folder = StudyFolder(self.run_dir)
        shutil.rmtree(folder.trial(trial.number).checkpoint, ignore_errors=True)
        self.keep_best(study)

    def keep_best(self, study: Study) -> None:
        """Remove the models of ended trials that are not the best, or not in the Pareto front."""
        trials = study.get_trials(deepcopy=False)
        best = {t.number for t in front(ranked(trials, study.directions), study.directions)}
        running = {t.number for t in trials if not t.state.is_finished()}
        for path in self.run_dir.glob(f"trials/*/{MODEL}"):
            with contextlib.suppress(ValueError):  # not a trial's folder
                if int(path.parent.name) not in best | running:
                    shutil.rmtree(path, ignore_errors=True)


def model_of(run_dir: Path, trial: FrozenTrial) -> Path | None:
    """Return the folder with the model of a trial; None: it was not kept."""
    path = StudyFolder(run_dir).trial(trial.number).path / MODEL
    return path if trial.state is TrialState.COMPLETE and path.is_dir() else None
