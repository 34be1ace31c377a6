"""Objective of a search with a Trainer: one training in a cell.

Trainer ──attached()──▶ hp_space ──▶ newest checkpoint ──▶ train(trial=…) ──▶ model, objective
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.engine.trial.faults import out_of_memory
from supermax.errors import Infeasible, UserError
from supermax.trainer.checkpoints import MODEL, last_metrics, newest_checkpoint
from supermax.trainer.detaching import Pristine, attached
from supermax.trainer.hyperparameters import NO_MODEL_INIT, SpaceArguments, check_argument_names
from supermax.trainer.plans import BatchSplit, batch_split_of, note_evaluation_short

_TRIES_TO_LOAD = 8  # as a split: three attempts have run out of memory before the training began


@dataclass
class TrainerObjective:
    """Trains with one trial's hyperparameters, as Trainer.hyperparameter_search does."""

    trainer: Any
    """The Trainer, without what belongs to a process; None: `factory` makes one."""
    factory: Callable[[], Any] | None
    hp_space: Callable[[Any], Mapping[str, Any]]
    compute_objective: Callable[[dict[str, float]], Any]
    hp_name: Callable[[Any], str] | None
    reuse: bool
    """True: a process runs several trials."""
    every: bool = False
    """True: a checkpoint precedes each report."""
    reports_all: bool = False
    """True: each of several objectives is reported."""
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
        training = _Training(self, trainer, trial)
        try:
            value = training.run()
        except Exception as error:
            if not out_of_memory(error):
                raise
            if training.evaluating:
                note_evaluation_short(trial.checkpoint_dir)
            if (why := training.why_not_split()) is not None:
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


class _Training:
    """One attempt at a trial."""

    def __init__(self, objective: TrainerObjective, trainer: Any, trial: RemoteTrial) -> None:
        from supermax.trainer.micro_batches import MicroBatches
        from supermax.trainer.reporting import TrialCallback

        self._objective, self._trainer, self._trial = objective, trainer, trial
        self._split = batch_split_of(trial.plan, trial.checkpoint_dir)
        self._micro = MicroBatches(trainer, self._split.training)
        self._callback = TrialCallback(
            trainer,
            trial,
            begin=self._begin,
            every=objective.every,
            reports_all=objective.reports_all,
        )
        self._began = False
        self.evaluating = False

    def run(self) -> Any:
        from transformers.trainer_utils import HPSearchBackend

        trainer, trial, objective = self._trainer, self._trial, self._objective
        self._adapt_arguments()
        self._adapt_callbacks()
        trainer.hp_search_backend = HPSearchBackend.OPTUNA
        trainer.hp_space, trainer.hp_name = self._hyperparameters, objective.hp_name
        trainer.compute_objective = objective.compute_objective
        trainer.objective = None
        trainer._report_to_hp_search = self._callback.evaluated
        trainer.evaluate = self._evaluate(trainer.evaluate)
        self._micro.install()
        if isinstance(objective.hp_space, SpaceArguments):
            objective.hp_space(trial)  # model_init finds all parameters in trial.params
        checkpoint = newest_checkpoint(trial.checkpoint_dir)
        trainer.train(
            resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None, trial=trial
        )
        value = self._value()
        trainer.save_model(str(trial.folder / MODEL))
        return value

    def why_not_split(self) -> str | None:
        """Return why smaller micro-batches are impossible or no help; None: they may help."""
        if not self._began:
            short = self._split.training >= _TRIES_TO_LOAD
            return "the model alone does not fit in memory" if short else None
        if self.evaluating or self._micro.why_not is None:
            return None
        return f"the batch does not fit in memory and cannot be split: {self._micro.why_not}"

    def _value(self) -> Any:
        trainer = self._trainer
        if trainer.objective is None and (metrics := last_metrics(trainer.state)) is not None:
            # The attempt began with the last checkpoint of the training.
            trainer.objective = trainer.compute_objective(metrics)
        if trainer.objective is None:
            trainer.objective = trainer.compute_objective(trainer.evaluate())
        return trainer.objective

    def _hyperparameters(self, trial: Any) -> Mapping[str, Any]:
        """Call hp_space, and check what it returns."""
        values = self._objective.hp_space(trial)
        check_argument_names(self._trainer, values)
        return values

    def _adapt_arguments(self) -> None:
        args = self._trainer.args
        args.output_dir = str(self._trial.checkpoint_dir)
        args.auto_find_batch_size = False  # it would change the batch
        args.save_only_model = False
        args.save_total_limit = 1
        args.restore_callback_states_from_checkpoint = True

    def _adapt_callbacks(self) -> None:
        """Print to the trial's log instead of a progress bar, and add the trial's callback."""
        from transformers import PrinterCallback, ProgressCallback

        handler = self._trainer.callback_handler
        names = {"NotebookProgressCallback"}
        for one in list(handler.callbacks):
            if isinstance(one, (ProgressCallback, PrinterCallback)) or type(one).__name__ in names:
                handler.remove_callback(one)
        handler.add_callback(PrinterCallback())
        handler.add_callback(self._callback)

    def _begin(self, args: Any) -> None:
        """Apply the split once the trial's arguments are known. Raise Infeasible if the split
        before it was the finest."""
        self._began = True
        self._micro.check()
        if self._split.evaluation // 2 >= args.per_device_eval_batch_size:
            raise Infeasible("A single example does not fit in memory in an evaluation.")
        parts = self._split.evaluation
        args.per_device_eval_batch_size = -(-args.per_device_eval_batch_size // parts)
        if self._split != BatchSplit():
            self._trial.note(micro_batch=self._micro.rows)

    def _evaluate(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.evaluating = True
            metrics = evaluate(*args, **kwargs)
            self.evaluating = False
            return metrics

        return noted
