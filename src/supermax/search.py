"""From settings to a search, and from what it found to a model: data, space and budget.

Resolved ──prepared()──▶ Search(tuning, options);  StudyRecord ──refit()──▶ an exported model
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

from supermax.agents.baselines import tfidf_baseline, trivial_baseline
from supermax.agents.data_summary import used_by
from supermax.agents.objective import AgentObjective, configured, here
from supermax.agents.repeating import Repetition
from supermax.agents.starting import check_parts
from supermax.errors import EnvironmentFault, UserError
from supermax.files import user_name
from supermax.memory.budgets import GpuBudget
from supermax.memory.sharing import share_of_each
from supermax.mps import shared
from supermax.naming import CACHE, REFIT, SETTINGS, STORAGE
from supermax.records import StudyRecord, TrialRecord
from supermax.settings import DataSettings, Resolved, Settings
from supermax.settings.model import ColumnSettings
from supermax.settings.resolving import GUESSES
from supermax.space import nest
from supermax.space import space_of as recorded_space
from supermax.spaces import fits_length, space_of
from supermax.study import in_words
from supermax.tracking import tracked
from supermax.training.config import Config
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus
from supermax.training.data.guessing import guess_file
from supermax.training.data.redsm5 import is_redsm5, not_redsm5, read_redsm5
from supermax.training.data.splits import Splits, read_splits, split, with_validation
from supermax.training.data.synthetic import synthetic
from supermax.training.data.tables import read_table
from supermax.training.limits import hold_to
from supermax.training.refit import Progress, Refit, Stage, Stages, shared_out
from supermax.training.refit import refit as train_again
from supermax.training.steps import Execution
from supermax.tuning import Tuning


@dataclass(frozen=True)
class Search:
    """A search that could start: run() goes on where an earlier one stopped."""

    resolved: Resolved
    tuning: Tuning
    options: dict[str, Any] = field(default_factory=dict)
    """For supermax.optimize."""

    @property
    def settings(self) -> Settings:
        return self.resolved.settings


def prepared(resolved: Resolved, tell: Callable[[str], None] = print) -> Search:
    """Read the data and the space. `tell` hears what a tracker could not send. Raises
    UserError."""
    resolved = with_columns(resolved)
    settings = resolved.settings
    check_gpus(settings.gpus)
    check_cache(cache_of(settings))
    splits = data_of(settings)
    check_parts(settings.agent, splits)
    tuning = Tuning(
        settings.agent,
        whole(splits),
        storage_of(settings),
        cache_of(settings),
        preset=settings.preset,
        space=space_of(settings),
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
        settings=noted(settings),
        around=partial(around, settings, tell),
        tell=lambda _: None,  # the plan says it
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
def around(
    settings: Settings, tell: Callable[[str], None], study: optuna.Study, workers: int, gpus: int
) -> Iterator[None]:
    """Keep what goes on for as long as the run does: CUDA's MPS, a tracker. `workers` and `gpus`
    are those of the run, whoever gave them."""
    with ExitStack() as stack:
        wanted = [name for name in ("mps", "compile") if getattr(settings, name) is True]
        if wanted and not torch.cuda.is_available():
            are, do = ("is", "does") if len(wanted) == 1 else ("are", "do")
            tell(
                f"{' and '.join(wanted)} {are} for GPUs and {do} nothing here: torch "
                f"{torch.__version__} sees none."
            )
        elif settings.mps:
            stack.enter_context(shared(tell, _share(settings, study, workers, gpus)))
        if (tracker := tracker_of(settings, tell)) is not None:
            stack.enter_context(tracker(study))
        yield


def _share(settings: Settings, study: optuna.Study, workers: int, gpus: int) -> int:
    """Share of a GPU for each cell, in percent."""
    done = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
    cells = min(workers, max(1, settings.trials - done))
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
            f"GPU {', '.join(wanted)} is asked for, and torch sees no GPU on this machine. "
            f"`supermax doctor` says more."
        )


def noted(settings: Settings) -> dict[str, Any]:
    """The settings as a study keeps them: no secret, and paths that hold from anywhere."""
    kept = settings.model_dump(mode="json", exclude={"storage", "track", "space"})
    if settings.data.path not in (None, "synthetic"):
        kept["data"]["path"] = str(Path(settings.data.path or "").expanduser().absolute())
    kept["cache"] = str(cache_of(settings).absolute())
    return kept


def remembered(kept: object, name: str) -> Settings:
    """The settings that a study was last searched with."""
    if not isinstance(kept, dict):
        raise UserError(
            f"The study '{name}' was not made by `supermax tune`, so which data and encoders it "
            f"is about is not known."
        )
    try:
        return Settings.model_validate(kept)
    except ValidationError:
        raise UserError(
            f"The settings that the study '{name}' was searched with cannot be read: another "
            f"version of Supermax wrote them. Tune it once more, which notes them anew."
        ) from None


def config_of(record: StudyRecord, trial: TrialRecord) -> Config:
    """The configuration of a trial, to train it again."""
    experiment = record.experiment
    return configured(experiment["agent"], nest(trial.params), experiment["limits"])


def refit(
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
    """The best trial, or another, trained for good on the data it was searched on, within the
    memory that its search had. `tell` is called with a message if memory runs out all the same."""
    chosen = record.best() if trial is None else record.trial(trial)
    stages(Stage("data"))
    splits = same_data(record, settings)
    config = config_of(record, chosen)
    train, held = shared_out(config, splits)
    judged = replace(
        held, classes=held.classes + splits.test.classes, spans=held.spans + splits.test.spans
    )
    objective = replace(objective_of(record, settings, splits), train=train, validation=judged)
    again = repetition(objective, settings, chosen, config, tell)
    execution = again.first(_held(settings, here(objective.execution)))
    columns = settings.data.columns
    epochs = int(chosen.result.get("best_epoch") or config.train.epochs)
    hold_to(execution)
    try:
        done = train_again(
            config,
            splits,
            seeds=seeds,
            cache=cache_of(settings),
            execution=execution,
            epochs=epochs,
            objective=record.objectives[0],
            folder=folder,
            progress=progress,
            smaller=again.smaller,
            stages=stages,
            columns=None if columns is None else columns.model_dump(exclude_none=True),
        )
    finally:
        hold_to(replace(execution, memory=None))
    found = refit_note(config.agent, chosen, done, splits, epochs)
    try:
        with in_words(record.study._storage):
            record.study.set_user_attr(REFIT, found)
    except EnvironmentFault as error:  # the model is exported all the same
        tell(f"The report will not have this refit. {error}")
    return chosen, done


def refit_note(
    agent: str, trial: TrialRecord, done: Refit, splits: Splits, epochs: int
) -> dict[str, Any]:
    """Return what a report says of a refit, as JSON has it: numbers on the test split."""
    train = whole(replace(splits, test=replace(splits.test, classes=(), spans=())))
    median = next(run for run in done.runs if run.seed == done.chosen)
    return {
        "trial": trial.number,
        "seeds": len(done.runs),
        "rows": len(used_by(agent, splits.test).examples),
        "metrics": {
            name: [x if math.isfinite(x) else None for x in (e.mean, e.low, e.high)]
            for name, e in done.metrics.items()
        },
        "counts": median.counts,
        "cautions": list(done.cautions),
        "folder": done.folder.name if done.folder is not None else "",
        "epochs": epochs,
        "learnt_from": len(used_by(agent, train).examples),
        "trivial": trivial_baseline(agent, train, splits.test),
        "tfidf": tfidf_baseline(agent, train, splits.test),
    }


def replayed(
    record: StudyRecord, trial: TrialRecord, tell: Callable[[str], None] = print
) -> AgentObjective:
    """The objective of an agent's study, executed as the trial was, or as it fits here."""
    settings = remembered(record.study.user_attrs.get(SETTINGS), record.name)
    objective = objective_of(record, settings, same_data(record, settings))
    again = repetition(objective, settings, trial, config_of(record, trial), tell)
    return replace(objective, execution=again.first(_held(settings, here(objective.execution))))


def objective_of(record: StudyRecord, settings: Settings, splits: Splits) -> AgentObjective:
    """The objective that a study of an agent was searched with."""
    space = recorded_space(record.study)
    if space is None:
        raise UserError(f"The study '{record.name}' does not remember its space.")
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
    """The trial's memory plan, for what the objective trains on."""
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


def _held(settings: Settings, execution: Execution) -> Execution:
    """A GPU emulates a smaller one where the settings say so. The data of this process is the
    caller's, and has no limit of ours."""
    on_gpu = execution.device.startswith("cuda")
    return replace(execution, memory=settings.gpu_memory if on_gpu else None)


def same_data(record: StudyRecord, settings: Settings) -> Splits:
    """The data, which must be what the study was searched on: a test split of other data may
    hold what trials have learnt from."""
    splits = data_of(settings)
    if record.experiment.get("data") != whole(splits).fingerprint:
        older = splits.joined and "splits" not in record.experiment
        split_before = " or was split before equal texts were kept together" if older else ""
        raise UserError(
            f"The data of the study '{record.name}' is not what it was ({settings.data.path})"
            f"{split_before}. Put back what was searched, or tune on what is there under another "
            f"name."
        )
    return splits


def storage_of(settings: Settings) -> str:
    return settings.storage or str(Path(settings.outdir).expanduser() / STORAGE)


def cache_of(settings: Settings) -> Path:
    return Path(settings.cache or Path(settings.outdir) / CACHE).expanduser()


def check_cache(cache: Path) -> None:
    """Raise EnvironmentFault where the cache is there and cannot be used, as another user's."""
    try:
        there = os.access(cache, os.R_OK | os.X_OK) and cache.is_dir()
        folders = [cache, *(cache.iterdir() if there else ())]
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
    made: dict[str, Callable[[], BasePruner]] = {
        "median": partial(optuna.pruners.MedianPruner, n_startup_trials=5, n_warmup_steps=1),
        "hyperband": partial(
            optuna.pruners.HyperbandPruner, min_resource=1, max_resource=settings.epochs
        ),
        "halving": partial(optuna.pruners.SuccessiveHalvingPruner, min_resource=1),
        "none": optuna.pruners.NopPruner,
    }
    return made[settings.pruner]()


# Data.


def data_of(settings: Settings) -> Splits:
    """The data, split. Raises UserError where there is none, or it cannot be read."""
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
        folder = _redsm5(Path(data.path).expanduser())
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


def _redsm5(folder: Path) -> Path:
    if not is_redsm5(folder):
        raise UserError(not_redsm5(folder))
    return folder


def with_columns(resolved: Resolved) -> Resolved:
    """The same settings, with the columns of a table guessed where they are not given."""
    data = resolved.settings.data
    if data.columns is not None or not _names_a_file(data):
        return resolved
    columns, why = guessed_columns(data)
    filled = {"data": data.model_copy(update={"columns": columns})}
    sources = {f"data.columns.{role}": f"guessed, {reason}" for role, reason in why.items()}
    return Resolved(
        resolved.settings.model_copy(update=filled),
        resolved.sources | sources,
        resolved.layers | dict.fromkeys(sources, GUESSES),
    )


def guessed_columns(data: DataSettings) -> tuple[ColumnSettings, dict[str, str]]:
    """Columns as `supermax init` guesses them, and why each."""
    guessed = guess_file(Path(str(data.path)).expanduser(), data.encoding)
    if guessed.unfit and guessed.role("label") is None and guessed.role("answer") is None:
        column, reason = guessed.unfit[0]
        raise UserError(f"{data.path}: the column '{column}' {reason}.")
    columns = ColumnSettings(**{guess.role: guess.column for guess in guessed.columns})
    return columns, {guess.role: guess.why for guess in guessed.columns}


def _names_a_file(data: DataSettings) -> bool:
    named = data.path is not None and data.path != "synthetic"
    return named and not Path(str(data.path)).expanduser().is_dir()


def whole(splits: Splits) -> Corpus:
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
