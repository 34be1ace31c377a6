"""Callback of a Trainer in a cell: checkpoints, reports, pruning, and the end of the run.

    evaluation ──▶ objective ──▶ checkpoint ──▶ report, should_prune

The Trainer evaluates before it saves. A report may end the attempt, for example because the run
stops, so it waits for the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import optuna
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from supermax.engine.processes.remote_trial import RemoteTrial, TrialInterrupted

SAVE_FACTOR = 10
"""An added checkpoint is due once the time since the last one is this multiple of what the last
one took."""


class TrialCallback(TrainerCallback):  # type: ignore[misc]
    """Connects one training to its trial.

    `begin` is called before the first step. `promotes`: a Promotion decides: a checkpoint precedes
    each report, however long it takes, and all objectives are reported.
    """

    def __init__(
        self,
        trainer: Any,
        trial: RemoteTrial,
        *,
        begin: Callable[[], None],
        promotes: bool,
    ) -> None:
        self._trainer, self._trial, self._begin = trainer, trial, begin
        self._promotes = promotes
        # Then the Trainer chooses among the checkpoints: there must be no others.
        self._adds = not trainer.args.load_best_model_at_end
        self._pending: tuple[Any, int] | None = None
        self._stops = False
        self._asked_at = self._saved_at = time.monotonic()
        self._took: float | None = None  # seconds of the last checkpoint

    def evaluated(self, _trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Compute the objective; replaces Trainer._report_to_hp_search, which would report it."""
        self._trainer.objective = self._trainer.compute_objective(metrics.copy())
        self._pending = (self._trainer.objective, step)

    # Events, in the order in which they happen.

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._asked_at = time.monotonic()
        self._trial.note(epoch=round(state.epoch or 0.0, 2), epochs=state.num_train_epochs)
        if self._trial.stop_requested:
            self._stops = control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._save_if_due(args, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._save_if_due(args, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved_at = time.monotonic()
        self._took = self._saved_at - self._asked_at
        self._report()
        if self._stops:
            raise TrialInterrupted

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report()

    def _save_if_due(self, args: Any, control: Any) -> None:
        self._asked_at = now = time.monotonic()
        if not self._adds or args.save_strategy == SaveStrategy.BEST:
            return
        due = self._took is None or now - self._saved_at >= SAVE_FACTOR * self._took
        control.should_save |= self._promotes or due

    def _report(self) -> None:
        if self._pending is None:
            return
        (value, step), self._pending = self._pending, None
        if len(self._trial.study.directions) > 1 and not self._promotes:
            return
        self._trial.report(value, step)
        if self._trial.should_prune():
            trainer = self._trainer
            trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
            raise optuna.TrialPruned
