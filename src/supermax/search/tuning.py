"""Hyperparameter search of an agent: data, space, study and engine put together.

Corpus ──split──▶ AgentObjective ──open_locked, optimize──▶ Tuned
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study

from supermax._util import system
from supermax._util.attributes import (
    BASELINES,
    DATA,
    EVALUATED,
    EXPERIMENT,
    NOTICES,
    RESULT,
    SETTINGS,
    metric_names,
    plain_params,
)
from supermax._util.text import metric_title
from supermax.engine.ranking import ranked
from supermax.engine.storage.locations import find_location
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.memory.budgets import ON_CPU, GpuBudget, HostBudget
from supermax.memory.devices import gpus, named
from supermax.memory.disk import Allowance, Demand
from supermax.memory.measurements import MeasurementLog, default_folder
from supermax.memory.sharing import resolve_workers
from supermax.run import optimize
from supermax.space import Space, enqueue_defaults, find_versions, nest, preset
from supermax.studies import (
    explain_write_errors,
    file_of,
    make_storage,
    open_locked,
    without_password,
)
from supermax.tasks.baselines import tfidf_baseline, trivial_baseline
from supermax.tasks.data_notices import weaknesses
from supermax.tasks.data_summary import data_summary
from supermax.tasks.fits import footprints
from supermax.tasks.measures import check_objectives, versions_of
from supermax.tasks.objective import AgentObjective, configured
from supermax.tasks.preflight import (
    VERSIONS,
    all_of,
    check_corpus,
    check_counts,
    check_known,
    check_limits,
    check_parts,
    check_questions,
    check_space,
    refuse_another,
)
from supermax.tasks.provisioning import MemoryPlanner
from supermax.tasks.space_fitting import Fitted, fitted
from supermax.tasks.truncation import truncation, truncation_notices
from supermax.tasks.weight_retention import WeightRetention, within_disk
from supermax.training.config import Config
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, split
from supermax.training.eval.baseline import trivial
from supermax.training.eval.metrics import METRICS
from supermax.training.models.sources import Source
from supermax.training.steps.base import Execution


@dataclass(frozen=True)
class Tuned:
    """Search that has run: to its number of trials, or until it was stopped."""

    agent: str
    study: Study
    summary: Summary
    splits: Splits
    space: Space
    objectives: Sequence[str]
    limits: dict[str, Any]

    def trivial_baseline(self, value: float) -> float | None:
        """Return the first objective of the trivial baseline (majority class, no answer); None
        where `value` is better, or the baseline has no such metric."""
        metric = METRICS.get(self.objectives[0])
        baseline = trivial(self.splits.train, self.splits.validation).get(self.objectives[0])
        if metric is None or baseline is None or math.isnan(baseline):
            return None
        better = value > baseline + 1e-9 if metric.higher else value < baseline - 1e-9
        return None if better else baseline

    def best(self, top: int = 5) -> list[dict[str, Any]]:
        """Return the best trials: number, values, encoder, best epoch, metrics."""
        rows = []
        for trial in ranked(self.study.get_trials(deepcopy=False), self.study.directions)[:top]:
            result = trial.user_attrs.get(RESULT, {})
            rows.append(
                {
                    "trial": trial.number,
                    "values": trial.values,
                    "encoder": plain_params(trial).get("encoder.name"),
                    "best_epoch": result.get("best_epoch"),
                    "metrics": result.get("metrics", {}),
                }
            )
        return rows

    def winner(self) -> dict[str, Any]:
        """Return the best trial as a row of best(). Raises UserError if none has a value yet."""
        rows = self.best(1)
        if not rows:
            raise UserError(
                f"No trial of the study '{self.study.study_name}' has a value yet. Run the "
                f"search again to continue."
            )
        return rows[0]

    def config(self, number: int) -> Config:
        """Return the configuration of a trial, to train it again."""
        values = plain_params(self.study.trials[number])
        return configured(self.agent, nest(values), self.limits)


@dataclass(frozen=True)
class Tuning:
    """Definition of a search. run() continues where an earlier one stopped."""

    agent: str
    corpus: Corpus
    """Examples of all splits."""
    storage: str | Path
    cache: Path
    preset: str = "demo"
    space: Space | None = None
    """Space to search; None: the preset's."""
    fit_length: bool | None = None
    """Set text.max_length from the lengths of the data; None: as the preset does, for its own
    space."""
    name: str | None = None
    """Name of the study; None: the agent's."""
    trials: int | None = None
    objectives: str | Sequence[str] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    """epochs, patience and min_delta that override the preset's."""
    sampler: BaseSampler | str | None = None
    pruner: BasePruner | None = None
    models: str | Sequence[str] | None = None
    """Encoders to search; None: the preset's."""
    seed: int | None = None
    splits: Splits | None = None
    """Splits of the data; None: the corpus is split at random."""
    top: int = 5
    """Number of best trials whose weights are kept."""
    budget: int | None = None
    """Bytes that kept weights may take on disk; None: no limit but `top`."""
    execution: Execution = field(
        default_factory=lambda: Execution(device="auto", precision="auto", micro_batch=None)
    )
    memory: int | None = None
    """Bytes of a GPU, or of the host's memory without one, that trials may take; None: all that is
    available."""
    settings: dict[str, Any] | None = None
    """Settings to store on the study, for later commands such as refit; None: store none."""
    around: Callable[[Study, int, int], AbstractContextManager[Any]] | None = None
    """Function that returns a context for the duration of the run (a tracker, say), called with
    the study, the number of parallel trials and the number of devices."""
    tell: Callable[[str], None] = print
    """Called with notices on the data and the space before the first trial."""
    warn: Callable[[str], None] = print
    """Called with a message where the run deviates from what was requested."""
    busy: Callable[[str], None] = lambda _: None
    """Called with a message before slow work that follows the last trial."""

    def run(self, **options: Any) -> Tuned:
        """Run the search. `options` are passed to supermax.optimize (workers, timeout, progress,
        …); `workers` may be "auto"."""
        size = preset(self.agent, self.preset, models=_with_commas(self.models))
        limits = {"epochs": size.epochs, "patience": size.patience, **self.limits}
        (objectives, directions), fit = self._checked(self.space or size.space, limits)
        splits = self.splits or split(self.corpus)
        check_parts(self.agent, splits)
        fit_length = self.fit_length
        if fit_length is None:
            fit_length = size.fit_length and self.space is None
        if fit_length:
            fit = fit.with_length(splits, self.cache)
        check_questions(self.agent, splits, fit.space, fit.sources.values(), self.cache)
        cuts = truncation(self.agent, splits, fit.space, fit.sources.values(), self.cache)
        notices = weaknesses(splits)
        for notice in (*fit.notices, *notices, *truncation_notices(cuts)):
            self.tell(notice)
        experiment = {
            "agent": self.agent,
            "data": self.corpus.fingerprint,
            "splits": splits.fingerprint,
            "objectives": list(objectives),
            VERSIONS: versions_of(objectives),
            "limits": limits,
        }
        study = self._opened(fit.space, directions, experiment, splits.joined)
        _note(study, NOTICES, notices)
        _note(study, DATA, data_summary(self.agent, splits, cuts))
        self._note_baselines(study, splits, wait=False)
        self._prepare_study(study, splits, fit.space, objectives)
        objective = AgentObjective(
            self.agent,
            fit.space,
            splits.train,
            splits.validation,
            self.cache,
            objectives,
            limits,
            self.execution,
            book=self.book(),
            top=self.top,
        )
        summary = self._optimized(study, objective, fit, self.trials or size.trials, options)
        self._note_baselines(study, splits, wait=summary.stopped_by is None)
        return Tuned(self.agent, study, summary, splits, fit.space, objectives, limits)

    def _checked(
        self, space: Space, limits: dict[str, Any]
    ) -> tuple[tuple[Sequence[str], list[str]], Fitted]:
        """Return the objectives with their directions, and the space fitted to this machine.
        Raises one UserError with all mistakes."""
        names = [self.objectives] if isinstance(self.objectives, str) else self.objectives
        check_corpus(self.corpus)
        classes = len(self.corpus.label_names) or 2
        device = "cuda" if has_cuda(self.execution) else "cpu"
        objectives, fit, *_ = all_of(
            "The search cannot start:",
            lambda: check_objectives(self.agent, names, classes),
            lambda: fitted(space, device),
            lambda: check_known(self.agent, self.corpus),
            lambda: check_limits(limits, space),
            lambda: check_space(self.agent, space),
            lambda: check_counts(trials=self.trials, top=self.top),
        )
        return objectives, fit

    def _prepare_study(
        self, study: Study, splits: Splits, space: Space, objectives: Sequence[str]
    ) -> None:
        """Name the study's values, store the split that they are computed on, and enqueue the
        space's defaults as the first trial."""
        with explain_write_errors(study._storage):
            name_values(study, titles_of(objectives, self.corpus.label_names))
            if EVALUATED not in study.user_attrs:
                examples = splits.validation.count(self.agent)
                study.set_user_attr(EVALUATED, {"split": "validation", "examples": examples})
            if space.defaults() is not None:
                enqueue_defaults(study, space)

    def _optimized(
        self,
        study: Study,
        objective: AgentObjective,
        fit: Fitted,
        trials: int,
        options: dict[str, Any],
    ) -> Summary:
        """Run the study to `trials` finished trials, within the memory and the disk space there
        is."""
        run_dir = find_location(study).run_dir
        if isinstance(given := options.get("run_dir"), (str, os.PathLike)):
            run_dir = Path(given)
        planner = self.planner(objective)
        if planner is not None:
            planner.check_anything_fits(fit.sources)
        allowed, notice = self.allowance(fit, run_dir, options)
        if notice:
            self.warn(notice)
        options["workers"] = allowed.workers
        retention = WeightRetention(run_dir, self.top, allowed.keep)
        callbacks = [retention, *(options.pop("callbacks", None) or ())]
        options = {"reuse_cells": True, "planner": planner, **options}
        devices = max(1, len(options.get("devices") or ()))
        around: AbstractContextManager[Any] = nullcontext()
        if self.around is not None:
            around = self.around(study, options["workers"], devices)
        with around:
            return optimize(study, objective, trials, callbacks=callbacks, **options)

    def workers(self, wanted: int | str, devices: Sequence[str] | None = None) -> int:
        """Return the number of parallel trials for a number or "auto"."""
        gpus = max(1, len(devices or ())) if has_cuda(self.execution) else 0
        return resolve_workers(wanted, gpus=gpus, cores=system.cores())

    def allowance(
        self, fit: Fitted, run_dir: Path, options: Mapping[str, Any]
    ) -> tuple[Allowance, str]:
        """Return the parallel trials and bytes of kept weights that fit on the disk, and a notice
        if they are fewer than requested, else "". Raises EnvironmentFault if no trial fits."""
        devices = options.get("devices") or ()
        execution = foreseen(self.execution, "cuda" if has_cuda(self.execution) else "cpu")
        budget = self.device_budget().whole * max(1, len(devices))

        def demand(sources: Iterable[Source]) -> Demand:
            found = footprints(fit.space, sources, self.agent, execution)
            workers = self.workers(options.get("workers", 1), devices)
            planned = budget if self.execution.micro_batch is None else None
            return Demand(found, workers, planned or None, self.top, self.budget)

        advice = "name a storage on another disk (--storage)"
        if options.get("run_dir"):
            advice = "give it a run_dir on another disk"
        elif file_of(self.storage) is None:
            advice = "set XDG_DATA_HOME to a folder on another disk"
        by_encoder = {name: demand([source]) for name, source in fit.sources.items()}
        return within_disk(demand(fit.sources.values()), run_dir, advice, by_encoder)

    def device_budget(self) -> GpuBudget | HostBudget:
        """Return the memory budget of the device that trials run on."""
        return GpuBudget(self.memory) if has_cuda(self.execution) else HostBudget(self.memory)

    def book(self) -> MeasurementLog:
        """Return the log of memory and speed measured on this device with the installed
        versions."""
        device = "cpu"
        if has_cuda(self.execution):
            found = named(gpus(), None)
            device = found.name if found is not None else "cuda"
        return MeasurementLog(default_folder(), device, versions())

    def planner(self, objective: AgentObjective) -> MemoryPlanner | None:
        """Return the memory planner; None where the micro-batch is given, or the device's memory
        cannot be read."""
        if self.memory is not None and self.memory < 1:
            raise UserError(f"memory must be more than 0 bytes, and is {self.memory}.")
        if self.execution.micro_batch is not None or objective.book is None:
            return None
        on_gpu = has_cuda(self.execution)
        if on_gpu:  # so that CUDA numbers GPUs as NVML does
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        budget = self.device_budget()
        if not budget.whole:
            self.tell(
                "The memory of the GPU cannot be read, so it is not planned: pip install "
                "nvidia-ml-py, or set it (memory, --gpu-memory)."
            )
            return None
        if not on_gpu:
            for variable, value in ON_CPU.items():
                os.environ.setdefault(variable, value)
        execution = foreseen(self.execution, "cuda" if on_gpu else "cpu")
        return MemoryPlanner(replace(objective, execution=execution), objective.book, budget)

    def _opened(
        self, space: Space, directions: list[str], experiment: dict[str, Any], joined: int
    ) -> Study:
        """Open the study and store the experiment on it. Raises UserError if its trials come from
        another experiment."""
        where, name = str(self.storage), self.name or self.agent
        storage = make_storage(where)
        attrs = [version.user_attrs for version in find_versions(storage, name)]
        # A version made by `supermax study migrate` has the trials of earlier ones, but no
        # EXPERIMENT attribute: the newest that has one counts.
        before = next(
            (found[EXPERIMENT] for found in reversed(attrs) if EXPERIMENT in found), None
        )
        refuse_another(name, without_password(where), before, experiment, joined)
        opened = open_locked(
            space,
            storage,
            quiet=True,
            name=name,
            sampler=self.sampler,
            pruner=self.pruner,
            directions=directions,
            seed=self.seed,
        )
        for line in opened.lines():
            self.warn(line)
        study = opened.study
        with explain_write_errors(storage):
            if EXPERIMENT not in study.user_attrs:
                study.set_user_attr(EXPERIMENT, experiment)
            if self.settings is not None and self.settings != study.user_attrs.get(SETTINGS):
                study.set_user_attr(SETTINGS, self.settings)
        return study

    def _note_baselines(self, study: Study, splits: Splits, wait: bool) -> None:
        """Store the baselines on the study, once. TF-IDF takes seconds: without `wait`, and after
        Ctrl-C, it is left to a later run."""
        stored = study.user_attrs.get(BASELINES)
        found: dict[str, Any] = dict(stored) if isinstance(stored, dict) else {}
        if "trivial" not in found:
            found["trivial"] = trivial_baseline(self.agent, splits.train, splits.validation)
        if wait and "tfidf" not in found:
            self.busy("Computing the TF-IDF baseline for the report.")
            with suppress(KeyboardInterrupt):
                found["tfidf"] = tfidf_baseline(self.agent, splits.train, splits.validation)
        _note(study, BASELINES, found)


def titles_of(objectives: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return readable titles of the objectives; their own names where two titles are the same."""
    titles = [metric_title(name, labels) for name in objectives]
    return titles if len(set(titles)) == len(titles) else list(objectives)


def name_values(study: Study, names: Sequence[str]) -> None:
    """Set the names under which Optuna and its dashboard show the values, unless they are set."""
    if not metric_names(study):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(names))


def _note(study: Study, key: str, value: Any) -> None:
    """Store a user attribute of the study, unless it has that value already."""
    with explain_write_errors(study._storage):
        if study.user_attrs.get(key, []) != value:
            study.set_user_attr(key, value)


def _with_commas(models: str | Sequence[str] | None) -> str | None:
    return models if models is None or isinstance(models, str) else ",".join(models)


def has_cuda(execution: Execution) -> bool:
    return execution.device.startswith("cuda") or (
        execution.device == "auto" and torch.cuda.is_available()
    )


def foreseen(execution: Execution, device: str) -> Execution:
    """Return the execution with "auto" resolved as cells will, without initialising CUDA here."""
    default = "bf16" if device == "cuda" else "fp32"
    precision = default if execution.precision == "auto" else execution.precision
    return replace(execution, device=device, precision=precision)


def versions() -> str:
    return f"torch {version('torch')} transformers {version('transformers')}"
