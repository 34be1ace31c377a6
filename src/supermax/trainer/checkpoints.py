"""Checkpoints of the Trainer in a trial's folder, and the models that a search keeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.ranking import front, ranked
from supermax.engine.storage.run_folder import StudyFolder

MODEL = "model"
"""Folder in a trial's folder with its trained model."""
CHECKPOINT = "checkpoint-*"
"""Folders of the Trainer's checkpoints."""
_STATE = "trainer_state.json"
_OPTIMIZER = "optimizer.pt"


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a Trainer below a folder; None: there is none. The
    state is the last file of a checkpoint that the Trainer writes."""
    found = [(step, path) for path in folder.rglob(CHECKPOINT) if (step := _step_of(path))]
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
    _written: set[int] | None = field(default=None, init=False)
    """Numbers of trials that may have a model; None: not looked yet."""

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        for path in StudyFolder(self.run_dir).trial(trial.number).checkpoint.rglob(CHECKPOINT):
            shutil.rmtree(path, ignore_errors=True)
        if self._written is None:
            self._written = self._found()
        self._written.add(trial.number)
        self._keep_best(study, self._written)

    def finish(self, study: Study) -> None:
        """Remove what trials have left whose end this run has not seen."""
        self._keep_best(study, self._found())

    def _found(self) -> set[int]:
        names = [path.parent.name for path in self.run_dir.glob(f"trials/*/{MODEL}")]
        return {int(name) for name in names if name.isdigit()}

    def _keep_best(self, study: Study, written: set[int]) -> None:
        trials = study.get_trials(deepcopy=False)
        best = {t.number for t in front(ranked(trials, study.directions), study.directions)}
        ended = {n for n in written if n < len(trials) and trials[n].state.is_finished()}
        for number in ended - best:
            path = StudyFolder(self.run_dir).trial(number).path / MODEL
            shutil.rmtree(path, ignore_errors=True)
            written.discard(number)


def model_of(run_dir: Path, trial: FrozenTrial) -> Path | None:
    """Return the folder with the model of a trial; None: it was not kept."""
    path = StudyFolder(run_dir).trial(trial.number).path / MODEL
    return path if trial.state is TrialState.COMPLETE and path.is_dir() else None
