"""supermax.hyperparameter_search: Trainer.hyperparameter_search with each trial in a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import optuna
from optuna.trial import FrozenTrial

from supermax._util.attributes import RECORD
from supermax._util.text import in_short
from supermax.engine.processes.pickling import NotPicklable
from supermax.engine.promotion.ladder import Promotion
from supermax.engine.ranking import front, ranked
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.run_folder import StudyFolder
from supermax.engine.summary import Summary
from supermax.errors import RunHalted, SupermaxError, UserError
from supermax.run import callback_list, optimize
from supermax.space import Space, flatten
from supermax.trainer.arguments import (
    check_backend,
    check_search_options,
    check_trainer,
    is_trainer,
    workers_of,
)
from supermax.trainer.attempt import SearchFunctions
from supermax.trainer.checkpoints import ModelRetention, model_of
from supermax.trainer.detaching import detached
from supermax.trainer.hyperparameters import SpaceArguments, try_space
from supermax.trainer.objective import TrainerObjective
from supermax.trainer.options import SearchOptions, passed_on
from supermax.trainer.plans import SplitPlanner
from supermax.trainer.setfit import DIRECTION, check_setfit, is_setfit, setfit_factory
from supermax.trainer.studies import open_search

if TYPE_CHECKING:
    from transformers.trainer_utils import BestRun


def hyperparameter_search(
    trainer: Any,
    hp_space: Callable[[Any], Mapping[str, Any]] | Space | None = None,
    compute_objective: Callable[[dict[str, float]], float | Sequence[float]] | None = None,
    n_trials: int | None = 20,
    direction: str | Sequence[str] | None = None,
    backend: object = None,
    hp_name: Callable[[Any], str] | None = None,
    **options: Unpack[SearchOptions],
) -> BestRun | list[BestRun]:
    """Search hyperparameters with the Trainer of transformers, each trial in its own process.

    It replaces ``trainer.hyperparameter_search(…)``: the arguments have the same meaning, and so
    has the result. Trials resume from the Trainer's checkpoints, and out of memory leads to
    smaller micro-batches with the same effective batch.

    Args:
        trainer: A Trainer with ``model_init``, or of a subclass, or a Trainer of SetFit. Or a
            function without arguments that returns one: it is called in each process, so nothing
            of the Trainer has to be sent there.
        hp_space: Optuna function that returns training arguments by name, or a Space whose
            parameters are named after them. None: that of transformers, or of SetFit
            (``default_hp_space_optuna``).
        compute_objective: Function of the metrics of an evaluation; with several directions it
            returns a sequence. None: that of transformers (``default_compute_objective``): the
            loss if there are no metrics, otherwise their sum.
        n_trials: Total number of finished trials of the study. None: no limit.
        direction: ``"minimize"``, ``"maximize"``, or a list of these for several objectives.
            None: that of ``trainer.hyperparameter_search``: ``"minimize"``, with a Trainer of
            SetFit ``"maximize"``. A function that makes the Trainer needs one.
        backend: None or ``"optuna"``.
        hp_name: Function of a trial that returns the name of its run, for loggers.
        options: Of ``optuna.create_study``: storage, study_name, sampler, pruner, load_if_exists
            (default True). Of `supermax.optimize`: workers, timeout, run_dir, devices,
            reuse_cells, trial_timeout, stall_timeout, retries, deadline, lease, callbacks,
            progress, reuse_results, paused_space, stop, track, notify. Of ``Study.optimize``:
            n_jobs, another name for workers; gc_after_trial and catch are accepted without effect.

    Returns:
        The best run; with several objectives, a list with those of the Pareto front. Its
        ``run_summary`` is a dict: ``checkpoint`` (folder with the trained model), ``study``,
        ``summary``.

    Raises:
        UserError: The arguments are invalid, the Trainer has no model_init, or it cannot be sent
            to another process.
        RunHalted: No trial has succeeded.
        EnvironmentFault: The machine or the storage prevents the run.
    """
    try:
        check_backend(backend)
        check_search_options(options)
        search = _Search(trainer, hp_space, compute_objective, hp_name, direction, options)
        return search.run(n_trials)
    except SupermaxError as error:
        raise error.with_traceback(None) from None  # the message alone


def _default_space(trial: Any) -> Mapping[str, Any]:
    from transformers.trainer_utils import default_hp_space_optuna

    space: Mapping[str, Any] = default_hp_space_optuna(trial)
    return space


@dataclass(frozen=True)
class _Given:
    """The argument `trainer`, and the defaults that follow from it."""

    trainer: Any = None
    """A Trainer that is sent to the cells; None: `factory` makes it there."""
    factory: Callable[[], Any] | None = None
    holder: Any = None
    """Trainer in this process whose model may occupy a GPU; None: there is none."""
    hp_space: Callable[[Any], Mapping[str, Any]] = _default_space
    direction: str | None = "minimize"
    """Default direction; None: the user has to give one."""
    output_dir: str = "."
    modules: tuple[str, ...] = ()


def _given(trainer: Any, *, prunes: bool) -> _Given:
    """Check the argument `trainer`. `prunes`: the user has chosen a pruner."""
    if is_setfit(trainer):
        from setfit.utils import default_hp_space_optuna

        check_setfit(trainer, prunes=prunes)
        return _Given(
            factory=setfit_factory(trainer),
            holder=trainer.st_trainer,
            hp_space=default_hp_space_optuna,
            direction=DIRECTION,
            output_dir=trainer.args.output_dir,
            modules=("setfit",),
        )
    if not is_trainer(trainer):
        return _Given(factory=trainer, direction=None)
    check_trainer(trainer)
    return _Given(
        trainer=trainer,
        holder=trainer,
        output_dir=trainer.args.output_dir,
        modules=_modules_of(trainer),
    )


def _modules_of(trainer: Any) -> tuple[str, ...]:
    """Return the module of a Trainer's model, which every cell would import."""
    model = getattr(trainer, "model", None)
    module = type(model).__module__
    return (module,) if model is not None and module != "__main__" else ()


class _Search:
    def __init__(
        self,
        trainer: Any,
        hp_space: Any,
        compute_objective: Any,
        hp_name: Callable[[Any], str] | None,
        direction: str | Sequence[str] | None,
        options: SearchOptions,
    ) -> None:
        from transformers.trainer_utils import default_compute_objective

        given = _given(trainer, prunes=options.get("pruner") is not None)
        direction = given.direction if direction is None else direction
        if direction is None:
            raise UserError(
                "direction is missing: a function that makes the Trainer has no default. Pass "
                "direction='minimize' or direction='maximize'."
            )
        self._given, self._options = given, options
        self._space = hp_space if isinstance(hp_space, Space) else None
        suggest = SpaceArguments(self._space) if self._space else hp_space
        functions = SearchFunctions(
            hp_space=suggest or given.hp_space,
            compute_objective=compute_objective or default_compute_objective,
            hp_name=hp_name,
            promotes=isinstance(options.get("pruner"), Promotion),
        )
        self._objective = TrainerObjective(
            trainer=given.trainer,
            factory=given.factory,
            functions=functions,
            reuse=bool(options.get("reuse_cells")),
            modules=given.modules,
        )
        if given.trainer is not None:
            try_space(given.trainer, functions.hp_space)
        self._study, self._run_dir = open_search(
            self._space,
            direction,
            given.output_dir,
            options,
        )

    def run(self, n_trials: int | None) -> BestRun | list[BestRun]:
        passed = passed_on(self._options)
        where = self._run_dir or find_location(self._study).run_dir
        retention = ModelRetention(where)
        callbacks = callback_list(passed.pop("callbacks", None))
        if isinstance(callbacks, list | tuple):  # others are refused with the other arguments
            callbacks = [retention, *callbacks]
        with detached(self._given.holder) if self._given.holder is not None else nullcontext():
            summary = self._optimize(
                n_trials=n_trials,
                workers=workers_of(self._options),
                run_dir=self._run_dir,
                planner=SplitPlanner(),
                callbacks=callbacks,
                **passed,
            )
        retention.finish(self._study)
        best = self._best(summary)
        runs = [self._best_run(trial, summary) for trial in best]
        return runs if len(self._study.directions) > 1 else runs[0]

    def _optimize(self, **arguments: Any) -> Summary:
        try:
            return optimize(self._study, self._objective, **arguments)
        except NotPicklable as error:
            if self._given.holder is None:
                raise
            raise UserError(
                f"{error} Or pass a function that makes the Trainer, in place of the Trainer: "
                f"supermax.hyperparameter_search(lambda: make_trainer(), …). Each process then "
                f"makes its own."
            ) from error

    def _best(self, summary: Summary) -> list[FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False)
        best = front(ranked(trials, self._study.directions), self._study.directions)
        if not best:
            raise RunHalted(
                f"No trial has succeeded, so there is no best run. {summary}"
                f"{_last_fault(trials, summary.run_dir)}"
            )
        return best

    def _best_run(self, trial: FrozenTrial, summary: Summary) -> BestRun:
        from transformers.trainer_utils import BestRun

        params = trial.params
        if self._space is not None:
            params = flatten(self._space.sample(optuna.trial.FixedTrial(params)))
        model = model_of(summary.run_dir, trial)
        details = {
            "checkpoint": str(model) if model is not None else None,
            "study": self._study,
            "summary": summary,
        }
        several = len(self._study.directions) > 1
        value = list(trial.values) if several else trial.value
        return BestRun(str(trial.number), value, params, details)


def _last_fault(trials: Sequence[FrozenTrial], run_dir: Path) -> str:
    """Return sentences about the last fault of the trials; empty if there was none."""
    for trial in reversed(trials):
        if faults := trial.user_attrs.get(RECORD, {}).get("faults"):
            log = StudyFolder(run_dir).trial(trial.number).log
            named = f" Its log: {log}" if log.is_file() else ""
            return f" Trial {trial.number}: {in_short(faults[-1]['message'], 500)}.{named}"
    return ""
