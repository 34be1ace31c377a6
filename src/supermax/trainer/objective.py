"""Objective of a search with a Trainer: one training in a cell.

Trainer ──attached()──▶ Attempt ──▶ objective, model
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.engine.trial.faults import out_of_memory
from supermax.errors import Infeasible, UserError
from supermax.trainer.attempt import Attempt, SearchFunctions
from supermax.trainer.detaching import Pristine, attached
from supermax.trainer.hyperparameters import NO_MODEL_INIT
from supermax.trainer.plans import note_evaluation_oom
from supermax.trainer.setfit import SetFitAttempt, is_setfit


@dataclass
class TrainerObjective:
    """Trains with one trial's hyperparameters, as Trainer.hyperparameter_search does."""

    trainer: Any
    """The Trainer, without what belongs to a process; None: `factory` makes one."""
    factory: Callable[[], Any] | None
    functions: SearchFunctions
    reuse: bool
    """True: a process runs several trials."""
    modules: tuple[str, ...] = ()
    """Modules to import before cells are forked."""
    _pristine: Pristine | None = field(default=None, init=False)

    def preload(self) -> None:
        """Import what every training needs, and note the state of the Trainer before the first."""
        if self.reuse and self.trainer is not None:
            self._pristine = Pristine(self.trainer)  # shared by the forked processes
        for name in ("transformers.trainer", "accelerate", "safetensors.torch", *self.modules):
            importlib.import_module(name)

    def __call__(self, trial: RemoteTrial) -> Any:
        trainer = self._trainer()
        kind = SetFitAttempt if is_setfit(trainer) else Attempt
        attempt = kind(self.functions, trainer, trial)
        try:
            value = attempt.run()
        except Exception as error:
            if not out_of_memory(error):
                raise
            if attempt.evaluating:
                note_evaluation_oom(trial.checkpoint_dir)
            if (why := attempt.why_not_split()) is not None:
                raise Infeasible(f"{why[0].upper()}{why[1:]}.") from error
            raise
        return value

    def _trainer(self) -> Any:
        """Return a Trainer that no trial has used."""
        if self.factory is not None:
            trainer = self.factory()
            if getattr(trainer, "model_init", None) is None:
                raise UserError(NO_MODEL_INIT)
            return trainer
        if self.reuse and self._pristine is None:  # the process was not forked
            self._pristine = Pristine(self.trainer)
        trainer = self._pristine.copy() if self._pristine is not None else self.trainer
        attached(trainer)
        return trainer
