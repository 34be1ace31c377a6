"""Refit and replay: a trial of a search is trained again, on the data of the search.

StudyRecord ──refit_study()──▶ an exported model
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from supermax._util.attributes import REFIT, SETTINGS, raced_study
from supermax.errors import EnvironmentFault, UserError
from supermax.results.records import StudyRecord, TrialRecord
from supermax.search.data import data_of, join_splits
from supermax.search.resources import Resources
from supermax.search.settings import Settings
from supermax.space import nest
from supermax.space import space_of as recorded_space
from supermax.studies import explain_write_errors
from supermax.tasks.baselines import fitted_baseline, trivial_baseline
from supermax.tasks.objective import AgentObjective, configured, local_execution
from supermax.tasks.preflight import DECODING
from supermax.tasks.repeating import Repetition
from supermax.training.config import Config
from supermax.training.data.splits import Splits
from supermax.training.deploy.refit import Progress, Refit, Stage, Stages, refit_splits
from supermax.training.deploy.refit import refit as refit_config
from supermax.training.steps.execution import Execution
from supermax.training.steps.memory_limits import limit_memory


def stored_settings(stored: object, name: str) -> Settings:
    """Return the settings of the last search of the study `name`, from its attribute. Raises
    UserError."""
    if not isinstance(stored, dict):
        if (searched := raced_study(name)) is not None:
            raise UserError(
                f"'{name}' is the race of the study '{searched}', which has the settings. Use the "
                f"name '{searched}': its winner is that of the race."
            )
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
    former = DECODING not in experiment
    return configured(experiment["agent"], nest(trial.params), experiment["limits"], former)


def refit_study(
    record: StudyRecord,
    trial: int | None,
    settings: Settings,
    *,
    seeds: Sequence[int],
    folder: str | Path,
    adapter: bool = False,
    progress: Progress | None = None,
    stages: Stages = lambda _: None,
    tell: Callable[[str], None] = print,
) -> tuple[TrialRecord, Refit]:
    """Train the configuration of the winner of the race, else of the best trial, or of `trial`,
    once for each seed; export a model, with `adapter` only its adapter.

    The data must be that of the search, and training stays within the memory that the search had.
    `tell` is called with a message if memory runs out all the same. Return the trial and the
    refit.
    """
    chosen = record.best() if trial is None else record.trial(trial)
    stages(Stage("data"))
    splits = same_data(record, settings)
    config = config_of(record, chosen)
    train, held_out = refit_splits(config, splits)
    evaluated = held_out.with_more(splits.test)
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
            cache=settings.cache_folder,
            execution=execution,
            epochs=epochs,
            objective=record.objectives[0],
            folder=folder,
            progress=progress,
            smaller=memory_plan.smaller,
            stages=stages,
            columns=None if columns is None else columns.model_dump(exclude_none=True),
            adapter=adapter,
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
    train = splits.seen
    median = next(run for run in refitted.runs if run.seed == refitted.chosen)
    return {
        "trial": trial.number,
        "seeds": len(refitted.runs),
        "rows": len(splits.test.used_by(agent).examples),
        "metrics": {
            name: [x if math.isfinite(x) else None for x in (e.mean, e.low, e.high)]
            for name, e in refitted.metrics.items()
        },
        "counts": median.counts,
        "cautions": list(refitted.cautions),
        "folder": refitted.folder.name if refitted.folder is not None else "",
        "epochs": epochs,
        "learnt_from": len(train.used_by(agent).examples),
        "trivial": trivial_baseline(agent, train, splits.test),
        "tfidf": fitted_baseline(agent, train, splits.test),
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
        settings.cache_folder,
        record.objectives,
        record.experiment["limits"],
        Execution(device="auto", precision="auto"),
        former_decoding=DECODING not in record.experiment,
    )


def repetition(
    objective: AgentObjective,
    settings: Settings,
    trial: TrialRecord,
    config: Config,
    tell: Callable[[str], None],
) -> Repetition:
    """Return the memory plan of the trial, for the data that the objective trains on."""
    resources = Resources(
        Execution(device="auto", precision="auto", micro_batch=None), settings.gpu_memory
    )
    planner = resources.planner(replace(objective, book=resources.measurement_log()), tell)
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
