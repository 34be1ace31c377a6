"""Search with the Trainer of SetFit, which is no Trainer of transformers.

Its training has two phases: a Trainer of sentence-transformers (`st_trainer`) fits the encoder on
pairs of texts, then a classifier is fitted. The first phase resumes from checkpoints and is split
into micro-batches, as any Trainer's. The objective is computed at the end, so nothing is reported
before, and no pruner sees anything.

    program:  setfit.Trainer ──setfit_factory()──▶ SetFitFactory
    cell:     SetFitFactory() ──▶ setfit.Trainer ──▶ SetFitAttempt.run() ──▶ objective, model
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.errors import UserError
from supermax.trainer.attempt import Attempt, SearchFunctions
from supermax.trainer.hyperparameters import NO_EVAL_DATASET, NO_MODEL_INIT, checked_mapping

DIRECTION = "maximize"
"""Default of setfit.Trainer.hyperparameter_search."""
_PARTS = ("model_init", "train_dataset", "eval_dataset", "metric", "metric_kwargs")
"""Arguments of setfit.Trainer that it keeps as they are. Columns are renamed already."""
_MADE = ("_args", "_model", "st_trainer", "column_mapping", "hp_search_backend", "logs_mapper")
"""Attributes that its constructor makes."""
_MODULES_OF_DEFAULTS = ("transformers.", "setfit.", "sentence_transformers.")
"""Packages whose callbacks its constructor adds."""


def is_setfit(trainer: object) -> bool:
    """Return whether this is a Trainer of SetFit."""
    module = sys.modules.get("setfit")
    return module is not None and isinstance(trainer, module.Trainer)


def check_setfit(trainer: Any, *, prunes: bool) -> None:
    """Raise UserError for a Trainer of SetFit that cannot be searched. `prunes`: the user has
    chosen a pruner."""
    from transformers.trainer_utils import number_of_arguments

    if trainer.model_init is None:
        raise UserError(NO_MODEL_INIT)
    if number_of_arguments(trainer.model_init) != 1:
        raise UserError(
            "SetFit calls model_init with the hyperparameters of each trial, so it needs one "
            "argument. Write model_init(params), even if it does not use them."
        )
    if trainer.eval_dataset is None:
        raise UserError(NO_EVAL_DATASET)
    if prunes:
        raise UserError(
            "SetFit computes the objective at the end of a training, so there is nothing that a "
            "pruner could compare. Leave pruner out."
        )


@dataclass(frozen=True)
class SetFitFactory:
    """Makes a Trainer of SetFit anew in each process: a Trainer holds its model, which belongs to
    one."""

    kind: Any
    """Class of the Trainer."""
    args: tuple[Any, Mapping[str, Any]]
    parts: Mapping[str, Any]
    callbacks: tuple[Any, ...]
    added: Mapping[str, Any]
    """Attributes that a subclass or the user has added."""

    def __call__(self) -> Any:
        import setfit

        kind, fields = self.args
        trainer = self.kind.__new__(self.kind)
        vars(trainer).update(self.added)
        # The constructor of a subclass may have other arguments.
        setfit.Trainer.__init__(
            trainer, args=kind(**fields), callbacks=list(self.callbacks), **self.parts
        )
        return trainer


def setfit_factory(trainer: Any) -> SetFitFactory:
    """Return the function that makes this Trainer of SetFit again, without its model."""
    added = {n: v for n, v in vars(trainer).items() if n not in (*_PARTS, *_MADE)}
    callbacks = trainer.st_trainer.callback_handler.callbacks
    return SetFitFactory(
        kind=type(trainer),
        args=(type(trainer.args), trainer.args.to_dict()),
        parts={name: getattr(trainer, name) for name in _PARTS},
        callbacks=tuple(
            one for one in callbacks if not type(one).__module__.startswith(_MODULES_OF_DEFAULTS)
        ),
        added=added,
    )


class SetFitAttempt(Attempt):
    """Training of a Trainer of SetFit. `_trainer` is that of its first phase."""

    def __init__(self, functions: SearchFunctions, trainer: Any, trial: RemoteTrial) -> None:
        super().__init__(functions, trainer.st_trainer, trial)
        self._setfit = trainer
        self._scoring = False

    def why_not_split(self) -> str | None:
        if self._scoring:
            return "the texts to evaluate, 32 at a time, do not fit in memory"
        return super().why_not_split()

    def _adapt_arguments(self) -> None:
        super()._adapt_arguments()
        args = self._setfit.args
        args.output_dir = str(self._trial.checkpoint_dir)
        args.save_total_limit = 1
        self._setfit.args = args  # the first phase gets a copy

    def _hyperparameters(self, trial: Any) -> Mapping[str, Any]:
        return checked_mapping(self._functions.hp_space(trial))

    def _train(self, checkpoint: Path | None) -> None:
        self._prepare_search(self._setfit)
        self._trainer.train = partial(self._train_encoder, self._trainer.train, checkpoint)
        self._setfit.train(trial=self._trial)

    def _train_encoder(self, train: Callable[..., Any], checkpoint: Path | None) -> Any:
        # SetFit replaces `model` for each trial, but the Trainer trains `model_wrapped`: without
        # this, the classifier would be fitted on an untrained encoder.
        self._trainer.model_wrapped = self._trainer.model
        return train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)

    def _value(self) -> Any:
        self._scoring = True
        metrics = self._setfit.evaluate()
        self._scoring = False
        return self._setfit.compute_objective(metrics)

    def _save_model(self, folder: str) -> None:
        self._setfit.model.save_pretrained(folder)
