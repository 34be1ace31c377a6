"""Preparation of a search from its settings, and refit of the model it found.

Resolved ──prepare_search()──▶ Search(tuning, options)
StudyRecord ──refit_study()──▶ an exported model
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.pruners import BasePruner
from pydantic import ValidationError

from supermax._util.attributes import CACHE, REFIT, SETTINGS, STORAGE
from supermax._util.files import user_name
from supermax.engine.processes.mps import shared
from supermax.errors import EnvironmentFault, UserError
from supermax.memory.budgets import GpuBudget
from supermax.memory.sharing import share_of_each
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.tracking import tracked
from supermax.search.settings import DataSettings, Resolved, Settings
from supermax.search.settings.model import ColumnSettings
from supermax.search.settings.resolving import GUESSES
from supermax.search.spaces import fits_length, space_for
from supermax.search.tuning import Tuning
from supermax.space import nest
from supermax.space import space_of as recorded_space
from supermax.studies import explain_write_errors
from supermax.tasks.baselines import tfidf_baseline, trivial_baseline
from supermax.tasks.data_summary import used_by
from supermax.tasks.objective import AgentObjective, configured, local_execution
from supermax.tasks.preflight import check_parts
from supermax.tasks.repeating import Repetition
from supermax.training.config import Config
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus
from supermax.training.data.guessing import guess_file
from supermax.training.data.redsm5 import is_redsm5, not_redsm5, read_redsm5
from supermax.training.data.splits import Splits, read_splits, split, with_validation
from supermax.training.data.synthetic import synthetic
from supermax.training.data.tables import read_table
from supermax.training.deploy.refit import Progress, Refit, Stage, Stages, refit_splits
from supermax.training.deploy.refit import refit as refit_config
from supermax.training.steps.base import Execution
from supermax.training.steps.memory_limits import limit_memory


@dataclass(frozen=True)
class Search:
    """Search that is ready to start: its data and space are read and checked."""

    resolved: Resolved
    tuning: Tuning
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of supermax.optimize."""

    @property
    def settings(self) -> Settings:
        return self.resolved.settings


def prepare_search(resolved: Resolved, tell: Callable[[str], None] = print) -> Search:
    """Read the data and the space. Raises UserError.

    `tell` is called with messages during the run, such as what a tracker could not send."""
    resolved = with_columns(resolved)
    settings = resolved.settings
    check_gpus(settings.gpus)
    check_cache(cache_of(settings))
    splits = data_of(settings)
    check_parts(settings.agent, splits)
    tuning = Tuning(
        settings.agent,
        join_splits(splits),
        storage_of(settings),
        cache_of(settings),
        preset=settings.preset,
        space=space_for(settings),
        fit_length=fits_length(settings),
        name=settings.study,
        trials=settings.trials,
        objectives=settings.objectives,
        limits=limits_of(settings),
        sampler=settings.sampler,
        pruner=pruner_of(settings),
        seed=settings.seed,
        splits=splits,
        top=settings.top,
        budget=settings.keep,
        execution=Execution(
            device="auto",
            precision="auto",
            compiled=None if settings.compile == "auto" else settings.compile,
        ),
        memory=settings.gpu_memory,
        settings=settings_to_store(settings),
        around=partial(run_context, settings, tell),
        tell=lambda _: None,  # the plan has the same notices
        warn=tell,
        busy=tell,
    )
    options = {
        "workers": settings.workers,
        "timeout": settings.timeout,
        "trial_timeout": settings.trial_timeout,
        "stall_timeout": settings.stall_timeout,
        "retries": settings.retries,
        "devices": settings.gpus or None,
    }
    return Search(resolved, tuning, options)


@contextmanager
def run_context(
    settings: Settings, tell: Callable[[str], None], study: optuna.Study, workers: int, gpus: int
) -> Iterator[None]:
    """Run CUDA MPS and the tracker, where the settings ask for them, during the context.

    `workers` and `gpus` are the numbers of the run, which may differ from the settings."""
    with ExitStack() as stack:
        wanted = [name for name in ("mps", "compile") if getattr(settings, name) is True]
        if wanted and not torch.cuda.is_available():
            are, do = ("is", "does") if len(wanted) == 1 else ("are", "do")
            tell(
                f"{' and '.join(wanted)} {are} for GPUs and {do} nothing here: torch "
                f"{torch.__version__} sees none."
            )
        elif settings.mps:
            stack.enter_context(shared(tell, _gpu_share(settings, study, workers, gpus)))
        if (tracker := tracker_of(settings, tell)) is not None:
            stack.enter_context(tracker(study))
        yield


def _gpu_share(settings: Settings, study: optuna.Study, workers: int, gpus: int) -> int:
    """Return the share of a GPU for each cell, in percent."""
    finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
    cells = min(workers, max(1, settings.trials - finished))
    return share_of_each(-(-cells // gpus), GpuBudget(settings.gpu_memory).whole)


def tracker_of(
    settings: Settings, tell: Callable[[str], None]
) -> Callable[[optuna.Study], AbstractContextManager[Any]] | None:
    if settings.track is None:
        return None
    uri = None if settings.track == "mlflow" else settings.track
    return partial(tracked, uri=uri, tell=tell)


def check_gpus(wanted: list[str]) -> None:
    if wanted and not torch.cuda.is_available():
        raise UserError(
            f"GPU {', '.join(wanted)} was requested, but torch sees no GPU on this machine. "
            f"Run `supermax doctor` for the reason."
        )


def settings_to_store(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON for the study: without secrets, and with absolute paths."""
    stored = settings.model_dump(mode="json", exclude={"storage", "track", "space"})
    if settings.data.path not in (None, "synthetic"):
        stored["data"]["path"] = str(Path(settings.data.path or "").expanduser().absolute())
    stored["cache"] = str(cache_of(settings).absolute())
    return stored


def stored_settings(stored: object, name: str) -> Settings:
    """Return the settings of the last search of the study `name`, from its attribute. Raises
    UserError."""
    if not isinstance(stored, dict):
        raise UserError(
            f"The study '{name}' was not made by `supermax tune`, so its data and encoders "
            f"are not known."
        )
    try:
        return Settings.model_validate(stored)
    except ValidationError:
        raise UserError(
            f"The settings of the study '{name}' cannot be read: another version of Supermax "
            f"wrote them. Run `supermax tune` on the study again, which stores them again."
        ) from None


def config_of(record: StudyRecord, trial: TrialRecord) -> Config:
    """Return the configuration of a trial, to train it again."""
    experiment = record.experiment
    return configured(experiment["agent"], nest(trial.params), experiment["limits"])


def refit_study(
    record: StudyRecord,
    trial: int | None,
    settings: Settings,
    *,
    seeds: Sequence[int],
    folder: str | Path,
    progress: Progress | None = None,
    stages: Stages = lambda _: None,
    tell: Callable[[str], None] = print,
) -> tuple[TrialRecord, Refit]:
    """Train the configuration of the best trial, or of `trial`, once for each seed; export a
    model.

    The data must be that of the search, and training stays within the memory that the search had.
    `tell` is called with a message if memory runs out all the same. Return the trial and the
    refit.
    """
    chosen = record.best() if trial is None else record.trial(trial)
    stages(Stage("data"))
    splits = same_data(record, settings)
    config = config_of(record, chosen)
    train, held_out = refit_splits(config, splits)
    evaluated = replace(
        held_out,
        classes=held_out.classes + splits.test.classes,
        spans=held_out.spans + splits.test.spans,
    )
    objective = replace(objective_of(record, settings, splits), train=train, validation=evaluated)
    memory_plan = repetition(objective, settings, chosen, config, tell)
    execution = memory_plan.first(_with_limit(settings, local_execution(objective.execution)))
    columns = settings.data.columns
    epochs = int(chosen.result.get("best_epoch") or config.train.epochs)
    limit_memory(execution)
    try:
        refitted = refit_config(
            config,
            splits,
            seeds=seeds,
            cache=cache_of(settings),
            execution=execution,
            epochs=epochs,
            objective=record.objectives[0],
            folder=folder,
            progress=progress,
            smaller=memory_plan.smaller,
            stages=stages,
            columns=None if columns is None else columns.model_dump(exclude_none=True),
        )
    finally:
        limit_memory(replace(execution, memory=None))
    note = refit_note(config.agent, chosen, refitted, splits, epochs)
    try:
        with explain_write_errors(record.study._storage):
            record.study.set_user_attr(REFIT, note)
    except EnvironmentFault as error:
        tell(f"The model is exported, but the report will not show this refit. {error}")
    return chosen, refitted


def refit_note(
    agent: str, trial: TrialRecord, refitted: Refit, splits: Splits, epochs: int
) -> dict[str, Any]:
    """Return the results of a refit on the test split, as JSON for the report."""
    train = join_splits(replace(splits, test=replace(splits.test, classes=(), spans=())))
    median = next(run for run in refitted.runs if run.seed == refitted.chosen)
    return {
        "trial": trial.number,
        "seeds": len(refitted.runs),
        "rows": len(used_by(agent, splits.test).examples),
        "metrics": {
            name: [x if math.isfinite(x) else None for x in (e.mean, e.low, e.high)]
            for name, e in refitted.metrics.items()
        },
        "counts": median.counts,
        "cautions": list(refitted.cautions),
        "folder": refitted.folder.name if refitted.folder is not None else "",
        "epochs": epochs,
        "learnt_from": len(used_by(agent, train).examples),
        "trivial": trivial_baseline(agent, train, splits.test),
        "tfidf": tfidf_baseline(agent, train, splits.test),
    }


def replay_objective(
    record: StudyRecord, trial: TrialRecord, tell: Callable[[str], None] = print
) -> AgentObjective:
    """Return the objective of an agent's study, with the trial's execution plan or, where that
    does not fit this machine, with one that does."""
    settings = stored_settings(record.study.user_attrs.get(SETTINGS), record.name)
    objective = objective_of(record, settings, same_data(record, settings))
    memory_plan = repetition(objective, settings, trial, config_of(record, trial), tell)
    execution = memory_plan.first(_with_limit(settings, local_execution(objective.execution)))
    return replace(objective, execution=execution)


def objective_of(record: StudyRecord, settings: Settings, splits: Splits) -> AgentObjective:
    """Return the objective that a study of an agent was searched with."""
    space = recorded_space(record.study)
    if space is None:
        raise UserError(f"The study '{record.name}' has no search space stored.")
    return AgentObjective(
        record.experiment["agent"],
        space,
        splits.train,
        splits.validation,
        cache_of(settings),
        record.objectives,
        record.experiment["limits"],
        Execution(device="auto", precision="auto"),
    )


def repetition(
    objective: AgentObjective,
    settings: Settings,
    trial: TrialRecord,
    config: Config,
    tell: Callable[[str], None],
) -> Repetition:
    """Return the memory plan of the trial, for the data that the objective trains on."""
    tuning = Tuning(
        objective.agent,
        objective.train,
        storage_of(settings),
        objective.cache,
        memory=settings.gpu_memory,
        tell=tell,
    )
    planner = tuning.planner(replace(objective, book=tuning.book()))
    before = trial.attempts[-1].plan if trial.attempts else None
    return Repetition(planner, config, before, tell)


def _with_limit(settings: Settings, execution: Execution) -> Execution:
    """Limit GPU memory as the settings do. On a CPU there is no limit: it would also count what
    the calling program has in memory."""
    on_gpu = execution.device.startswith("cuda")
    return replace(execution, memory=settings.gpu_memory if on_gpu else None)


def same_data(record: StudyRecord, settings: Settings) -> Splits:
    """Read the data. Raise UserError unless it is that of the search: with other data, the test
    split could contain examples that trials were trained on."""
    splits = data_of(settings)
    if record.experiment.get("data") != join_splits(splits).fingerprint:
        older = splits.joined and "splits" not in record.experiment
        split_before = " or was split before equal texts were kept together" if older else ""
        raise UserError(
            f"The data of the study '{record.name}' is not what it was ({settings.data.path})"
            f"{split_before}. Restore the data of the search, or search the new data under "
            f"another name: --set name=NAME."
        )
    return splits


def storage_of(settings: Settings) -> str:
    return settings.storage or str(Path(settings.outdir).expanduser() / STORAGE)


def cache_of(settings: Settings) -> Path:
    return Path(settings.cache or Path(settings.outdir) / CACHE).expanduser()


def check_cache(cache: Path) -> None:
    """Raise EnvironmentFault where the cache exists and cannot be used, such as another user's."""
    try:
        readable = os.access(cache, os.R_OK | os.X_OK) and cache.is_dir()
        folders = [cache, *(cache.iterdir() if readable else ())]
        _check_writable(folders)
    except OSError as error:
        raise EnvironmentFault(f"The cache {cache} cannot be used: {error.strerror}.") from error


def _check_writable(folders: Sequence[Path]) -> None:
    for folder in folders:
        usable = not folder.is_dir() or os.access(folder, os.R_OK | os.W_OK | os.X_OK)
        if not usable and (uid := folder.stat().st_uid) != os.getuid():
            owner = user_name(uid)
            raise EnvironmentFault(
                f"The cache {folder} cannot be written; it belongs to {owner}. Give this search "
                f"one of its own: --set cache=FOLDER."
            )


def limits_of(settings: Settings) -> dict[str, Any]:
    return {
        "epochs": settings.epochs,
        "patience": settings.patience,
        "min_delta": settings.min_delta,
    }


def pruner_of(settings: Settings) -> BasePruner:
    pruners: dict[str, Callable[[], BasePruner]] = {
        "median": partial(optuna.pruners.MedianPruner, n_startup_trials=5, n_warmup_steps=1),
        "hyperband": partial(
            optuna.pruners.HyperbandPruner, min_resource=1, max_resource=settings.epochs
        ),
        "halving": partial(optuna.pruners.SuccessiveHalvingPruner, min_resource=1),
        "none": optuna.pruners.NopPruner,
    }
    return pruners[settings.pruner]()


def data_of(settings: Settings) -> Splits:
    """Read the data and split it. Raises UserError where there is none, or it cannot be read."""
    data, seed = settings.data, settings.data.split_seed
    if data.path is None and settings.preset not in ("demo", "standard"):
        raise UserError(
            f"No data is named for the agent '{settings.agent}'. Name a CSV or JSONL file or a "
            f"folder of ReDSM5 with --data or in the settings, or try --data synthetic."
        )
    if data.path is None or data.path == "synthetic":
        corpus = synthetic(
            data.posts, difficulty=data.difficulty, seed=data.seed, max_words=data.max_words
        )
    elif Path(data.path).expanduser().is_dir():
        folder = Path(data.path).expanduser()
        if not is_redsm5(folder):
            raise UserError(not_redsm5(folder))
        located = settings.agent != "criteria"
        corpus = read_redsm5(folder, on_bad=data.on_bad, located=located)
    else:
        columns = Columns(**(data.columns or guessed_columns(data)[0]).model_dump())
        read = read_table if columns.split is None else read_splits
        found = read(
            data.path, columns, labels=data.labels, on_bad=data.on_bad, encoding=data.encoding
        )
        if isinstance(found, Splits):
            return with_validation(found, data.validation, seed)
        corpus = found
    return split(corpus, validation=data.validation, test=data.test, seed=seed)


def with_columns(resolved: Resolved) -> Resolved:
    """Return the settings, with the columns of a table guessed where they are not given."""
    data = resolved.settings.data
    if data.columns is not None or not _is_table(data):
        return resolved
    columns, reasons = guessed_columns(data)
    filled = {"data": data.model_copy(update={"columns": columns})}
    sources = {f"data.columns.{role}": f"guessed, {reason}" for role, reason in reasons.items()}
    return Resolved(
        resolved.settings.model_copy(update=filled),
        resolved.sources | sources,
        resolved.layers | dict.fromkeys(sources, GUESSES),
    )


def guessed_columns(data: DataSettings) -> tuple[ColumnSettings, dict[str, str]]:
    """Return the columns as `supermax init` guesses them, and the reason of each by its role."""
    guessed = guess_file(Path(str(data.path)).expanduser(), data.encoding)
    if guessed.unfit and guessed.role("label") is None and guessed.role("answer") is None:
        column, reason = guessed.unfit[0]
        raise UserError(f"{data.path}: the column '{column}' {reason}.")
    columns = ColumnSettings(**{guess.role: guess.column for guess in guessed.columns})
    return columns, {guess.role: guess.why for guess in guessed.columns}


def _is_table(data: DataSettings) -> bool:
    """Return True if the data is a CSV or JSONL file: neither synthetic nor a folder."""
    named = data.path is not None and data.path != "synthetic"
    return named and not Path(str(data.path)).expanduser().is_dir()


def join_splits(splits: Splits) -> Corpus:
    """Return the examples of all splits as one corpus."""
    parts = (splits.train, splits.validation, splits.test)
    return Corpus(
        splits.train.name,
        splits.train.label_names,
        sum((part.classes for part in parts), ()),
        sum((part.spans for part in parts), ()),
        splits.train.skipped,
        splits.train.unlabelled,
        splits.train.detected,
    )
