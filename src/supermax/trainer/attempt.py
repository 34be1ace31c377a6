"""One attempt at a trial: a training of a Trainer in a cell.

hp_space ──▶ newest checkpoint ──▶ train(trial=…) ──▶ objective, model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.errors import Infeasible
from supermax.trainer.checkpoints import MODEL, last_metrics, newest_checkpoint
from supermax.trainer.hyperparameters import SpaceArguments, check_argument_names
from supermax.trainer.plans import BatchSplit, batch_split_of

_PARTS_AFTER_THREE_OOMS = 2**3


@dataclass(frozen=True)
class SearchFunctions:
    """Functions of the user, and whether its pruner pauses trials."""

    hp_space: Callable[[Any], Mapping[str, Any]]
    compute_objective: Callable[[dict[str, float]], Any]
    hp_name: Callable[[Any], str] | None
    promotes: bool = False
    """True: a Promotion decides: a checkpoint precedes each report, and all objectives are
    reported."""


class Attempt:
    """Training of a Trainer of transformers."""

    def __init__(self, functions: SearchFunctions, trainer: Any, trial: RemoteTrial) -> None:
        from supermax.trainer.micro_batches import MicroBatches
        from supermax.trainer.reporting import TrialCallback

        self._functions, self._trainer, self._trial = functions, trainer, trial
        self._split = batch_split_of(trial.plan, trial.checkpoint_dir)
        self._micro = MicroBatches(trainer, self._split.training)
        self._callback = TrialCallback(
            trainer, trial, begin=self._begin, promotes=functions.promotes
        )
        self._began = False
        self.evaluating = False

    def run(self) -> Any:
        """Train, and return the objective."""
        self._adapt_arguments()
        self._adapt_callbacks()
        self._trainer.evaluate = self._noting_evaluation(self._trainer.evaluate)
        self._micro.install()
        if isinstance(self._functions.hp_space, SpaceArguments):
            self._functions.hp_space(self._trial)  # model_init finds all parameters in the trial
        self._train(newest_checkpoint(self._trial.checkpoint_dir))
        value = self._value()
        self._save_model(str(self._trial.folder / MODEL))
        return value

    def why_not_split(self) -> str | None:
        """Return why smaller micro-batches are impossible or no help; None: they may help."""
        if not self._began:
            often = self._split.training >= _PARTS_AFTER_THREE_OOMS
            return "the model alone does not fit in memory" if often else None
        if self.evaluating or self._micro.why_not is None:
            return None
        return f"the batch does not fit in memory and cannot be split: {self._micro.why_not}"

    def _prepare_search(self, trainer: Any) -> None:
        """Set what Trainer.hyperparameter_search sets before its first trial."""
        from transformers.trainer_utils import HPSearchBackend

        trainer.hp_search_backend = HPSearchBackend.OPTUNA
        trainer.hp_space, trainer.hp_name = self._hyperparameters, self._functions.hp_name
        trainer.compute_objective = self._functions.compute_objective
        trainer.objective = None

    def _train(self, checkpoint: Path | None) -> None:
        self._prepare_search(self._trainer)
        self._trainer._report_to_hp_search = self._callback.evaluated
        self._trainer.train(
            resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None,
            trial=self._trial,
        )

    def _value(self) -> Any:
        trainer = self._trainer
        if trainer.objective is None and (metrics := last_metrics(trainer.state)) is not None:
            # The attempt began with the last checkpoint of the training.
            trainer.objective = trainer.compute_objective(metrics)
        if trainer.objective is None:
            trainer.objective = trainer.compute_objective(trainer.evaluate())
        return trainer.objective

    def _save_model(self, folder: str) -> None:
        self._trainer.save_model(folder)

    def _hyperparameters(self, trial: Any) -> Mapping[str, Any]:
        """Call hp_space, and check what it returns."""
        values = self._functions.hp_space(trial)
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

    def _begin(self) -> None:
        """Apply the split once the trial's arguments are known. Raise Infeasible if the split
        before it was the finest."""
        self._began = True
        self._micro.check()
        args = self._trainer.args
        if self._split.evaluation // 2 >= args.per_device_eval_batch_size:
            raise Infeasible("A single example does not fit in memory in an evaluation.")
        parts = self._split.evaluation
        args.per_device_eval_batch_size = -(-args.per_device_eval_batch_size // parts)
        if self._split != BatchSplit():
            self._trial.note(micro_batch=self._micro.rows)

    def _noting_evaluation(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.evaluating = True
            metrics = evaluate(*args, **kwargs)
            self.evaluating = False
            return metrics

        return noted
