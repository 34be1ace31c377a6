"""A search over an agent: data, space, study and engine wired together.

Corpus ──split──▶ AgentObjective ──open_study, optimize──▶ Tuned
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

from supermax.agents.baselines import tfidf_baseline, trivial_baseline
from supermax.agents.data_notices import weaknesses
from supermax.agents.data_summary import data_summary
from supermax.agents.fits import footprints
from supermax.agents.fitting import Fitted, fitted
from supermax.agents.keeping import Keeper, within_disk
from supermax.agents.measures import check_objectives, versions_of
from supermax.agents.objective import AgentObjective, configured
from supermax.agents.provisioning import MemoryPlanner
from supermax.agents.starting import (
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
from supermax.agents.truncation import told, truncation
from supermax.engine import kernel
from supermax.engine.home import find_home
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.memory.budgets import ON_CPU, GpuBudget, HostBudget
from supermax.memory.devices import gpus, named
from supermax.memory.disk import Allowance, Demand
from supermax.memory.learning import Book, default_folder
from supermax.memory.sharing import cells_that_pay
from supermax.naming import (
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
from supermax.ranking import ranked
from supermax.run import optimize
from supermax.space import Space, enqueue_defaults, find_versions, nest, preset
from supermax.study import file_of, in_words, make_storage, open_study, without_password
from supermax.training.baseline import trivial
from supermax.training.config import Config
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, split
from supermax.training.metrics import METRICS
from supermax.training.sources import Source
from supermax.training.steps import Execution
from supermax.words import metric_title


@dataclass(frozen=True)
class Tuned:
    """A search that has come to its end, or as far as it was let."""

    agent: str
    study: Study
    summary: Summary
    splits: Splits
    space: Space
    objectives: Sequence[str]
    limits: dict[str, Any]

    def trivial_baseline(self, value: float) -> float | None:
        """Return the objective's value of the trivial baseline (majority class, no answer); None
        where `value` is better, or nothing is known."""
        metric = METRICS.get(self.objectives[0])
        known = trivial(self.splits.train, self.splits.validation).get(self.objectives[0])
        if metric is None or known is None or math.isnan(known):
            return None
        better = value > known + 1e-9 if metric.higher else value < known - 1e-9
        return None if better else known

    def best(self, top: int = 5) -> list[dict[str, Any]]:
        """The best trials: number, value, encoder, epochs, metrics."""
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
        """The best trial, as best() shows it. Raises UserError when none has finished yet."""
        rows = self.best(1)
        if not rows:
            raise UserError(
                f"No trial of the study '{self.study.study_name}' has come to a value yet. Run "
                f"the search again to go on."
            )
        return rows[0]

    def config(self, number: int) -> Config:
        """The configuration of a trial, to train it again."""
        values = plain_params(self.study.trials[number])
        return configured(self.agent, nest(values), self.limits)


@dataclass(frozen=True)
class Tuning:
    """What to search and how far; run() goes on where an earlier one stopped."""

    agent: str
    corpus: Corpus
    """All of the data."""
    storage: str | Path
    cache: Path
    preset: str = "demo"
    space: Space | None = None
    """Another space than the preset's."""
    fit_length: bool | None = None
    """Set text.max_length to what the data needs; None: as the preset does with its own space."""
    name: str | None = None
    """Of the study; by default the agent's."""
    trials: int | None = None
    objectives: str | Sequence[str] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    """epochs, patience, min_delta: instead of the preset's."""
    sampler: BaseSampler | str | None = None
    pruner: BasePruner | None = None
    models: str | Sequence[str] | None = None
    """Encoders instead of the preset's."""
    seed: int | None = None
    splits: Splits | None = None
    """Of the data, where it comes split; otherwise it is dealt."""
    top: int = 5
    """Trials whose weights are kept."""
    budget: int | None = None
    """Bytes that kept weights may take; None: no limit but the top."""
    execution: Execution = field(
        default_factory=lambda: Execution(device="auto", precision="auto", micro_batch=None)
    )
    memory: int | None = None
    """Bytes of a device, or of this machine's memory where there is none, that trials may take;
    None: what there is."""
    settings: dict[str, Any] | None = None
    """Noted on the study, for commands that come later."""
    around: Callable[[Study, int, int], AbstractContextManager[Any]] | None = None
    """Context for as long as the run goes (a tracker, say), made from the study, the number of
    trials at a time and the number of devices they are spread over."""
    tell: Callable[[str], None] = print
    warn: Callable[[str], None] = print
    """Called with what the run does otherwise than it was asked to."""
    busy: Callable[[str], None] = lambda _: None
    """Called with what takes a while after the last trial."""

    def run(self, **options: Any) -> Tuned:
        """Search. `options` go to supermax.optimize (workers, timeout, progress, …); `workers`
        may be "auto"."""
        size = preset(self.agent, self.preset, models=_with_commas(self.models))
        limits = {"epochs": size.epochs, "patience": size.patience, **self.limits}
        names = [self.objectives] if isinstance(self.objectives, str) else self.objectives
        check_corpus(self.corpus)
        classes = len(self.corpus.label_names) or 2
        space, device = self.space or size.space, "cuda" if has_cuda(self.execution) else "cpu"
        (chosen, directions), fit, *_ = all_of(
            "The search cannot start:",
            lambda: check_objectives(self.agent, names, classes),
            lambda: fitted(space, device),
            lambda: check_known(self.agent, self.corpus),
            lambda: check_limits(limits, space),
            lambda: check_space(self.agent, space),
            lambda: check_counts(trials=self.trials, top=self.top),
        )
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
        for notice in (*fit.notices, *notices, *told(cuts)):
            self.tell(notice)
        experiment = {
            "agent": self.agent,
            "data": self.corpus.fingerprint,
            "splits": splits.fingerprint,
            "objectives": list(chosen),
            VERSIONS: versions_of(chosen),
            "limits": limits,
        }
        study = self._opened(fit.space, directions, experiment, splits.joined)
        _note(study, NOTICES, notices)
        _note(study, DATA, data_summary(self.agent, splits, cuts))
        self._note_baselines(study, splits, wait=False)
        with in_words(study._storage):
            name_values(study, titles_of(chosen, self.corpus.label_names))
            if EVALUATED not in study.user_attrs:
                examples = splits.validation.count(self.agent)
                study.set_user_attr(EVALUATED, {"split": "validation", "examples": examples})
        if fit.space.defaults() is not None:
            with in_words(study._storage):
                enqueue_defaults(study, fit.space)
        objective = AgentObjective(
            self.agent,
            fit.space,
            splits.train,
            splits.validation,
            self.cache,
            chosen,
            limits,
            self.execution,
            book=self.book(),
            top=self.top,
        )
        run_dir = find_home(study).run_dir
        if isinstance(elsewhere := options.get("run_dir"), (str, os.PathLike)):
            run_dir = Path(elsewhere)
        planner = self.planner(objective)
        if planner is not None:
            planner.refuse_what_cannot_be(fit.sources)
        allowed, notice = self.allowance(fit, run_dir, options)
        if notice:
            self.warn(notice)
        options["workers"] = allowed.workers
        keeper = Keeper(run_dir, self.top, allowed.keep)
        callbacks = [keeper, *(options.pop("callbacks", None) or ())]
        options = {"reuse_cells": True, "planner": planner, **options}
        devices = max(1, len(options.get("devices") or ()))
        around: AbstractContextManager[Any] = nullcontext()
        if self.around is not None:
            around = self.around(study, options["workers"], devices)
        with around:
            summary = optimize(
                study, objective, self.trials or size.trials, callbacks=callbacks, **options
            )
        self._note_baselines(study, splits, wait=summary.stopped_by is None)
        return Tuned(self.agent, study, summary, splits, fit.space, chosen, limits)

    def workers(self, wanted: int | str, devices: Sequence[str] | None = None) -> int:
        """Trials at a time."""
        gpus = max(1, len(devices or ())) if has_cuda(self.execution) else 0
        return cells_that_pay(wanted, gpus=gpus, cores=kernel.cores())

    def allowance(
        self, fit: Fitted, run_dir: Path, options: Mapping[str, Any]
    ) -> tuple[Allowance, str]:
        """Trials at a time and bytes of kept weights that the disk has room for; a notice where
        that is less than was asked for. Raises EnvironmentFault where it is not enough."""
        devices = options.get("devices") or ()
        execution = foreseen(self.execution, "cuda" if has_cuda(self.execution) else "cpu")
        budget = self.device_budget().whole * max(1, len(devices))

        def demand(sources: Iterable[Source]) -> Demand:
            found = footprints(fit.space, sources, self.agent, execution)
            workers = self.workers(options.get("workers", 1), devices)
            planned = budget if self.execution.micro_batch is None else None
            return Demand(found, workers, planned or None, self.top, self.budget)

        elsewhere = "name a storage on another disk (--storage)"
        if options.get("run_dir"):
            elsewhere = "give it a run_dir on another disk"
        elif file_of(self.storage) is None:
            elsewhere = "set XDG_DATA_HOME to a folder on another disk"
        alone = {name: demand([source]) for name, source in fit.sources.items()}
        return within_disk(demand(fit.sources.values()), run_dir, elsewhere, alone)

    def device_budget(self) -> GpuBudget | HostBudget:
        """Memory of a device for trials."""
        return GpuBudget(self.memory) if has_cuda(self.execution) else HostBudget(self.memory)

    def book(self) -> Book:
        """What trials on this device took, with the libraries that are installed."""
        device = "cpu"
        if has_cuda(self.execution):
            found = named(gpus(), None)
            device = found.name if found is not None else "cuda"
        return Book(default_folder(), device, versions())

    def planner(self, objective: AgentObjective) -> MemoryPlanner | None:
        """None where the split of a batch was given, or what there is cannot be seen."""
        if self.memory is not None and self.memory < 1:
            raise UserError(f"memory must be more than 0 bytes, and is {self.memory}.")
        if self.execution.micro_batch is not None or objective.book is None:
            return None
        on_gpu = has_cuda(self.execution)
        if on_gpu:  # as NVIDIA's own tools number them
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        budget = self.device_budget()
        if not budget.whole:
            self.tell(
                "How much memory the GPU has cannot be seen, so it is not planned: pip install "
                "nvidia-ml-py, or say it (memory, --gpu-memory)."
            )
            return None
        if not on_gpu:
            for variable, value in ON_CPU.items():
                os.environ.setdefault(variable, value)
        execution = foreseen(self.execution, "cuda" if on_gpu else "cpu")
        return MemoryPlanner(
            self.agent,
            objective.space,
            objective.train,
            objective.validation,
            self.cache,
            objective.limits,
            execution,
            objective.book,
            budget,
        )

    def _opened(
        self, space: Space, directions: list[str], experiment: dict[str, Any], joined: int
    ) -> Study:
        """The study, unless its values come from another experiment than this."""
        where, name = str(self.storage), self.name or self.agent
        storage = make_storage(where)
        notes = [version.user_attrs for version in find_versions(storage, name)]
        # A version that `supermax study migrate` made has the trials of those before, and no note.
        before = next((note[EXPERIMENT] for note in reversed(notes) if EXPERIMENT in note), None)
        refuse_another(name, without_password(where), before, experiment, joined)
        study = open_study(
            space,
            storage=storage,
            name=name,
            sampler=self.sampler,
            pruner=self.pruner,
            directions=directions,
            seed=self.seed,
            quiet=True,
        )
        with in_words(storage):
            if EXPERIMENT not in study.user_attrs:
                study.set_user_attr(EXPERIMENT, experiment)
            if self.settings is not None and self.settings != study.user_attrs.get(SETTINGS):
                study.set_user_attr(SETTINGS, self.settings)
        return study

    def _note_baselines(self, study: Study, splits: Splits, wait: bool) -> None:
        """Note the baselines on the study, once. TF-IDF takes seconds: it is left to another run
        where this one was told to stop, or is told so now (Ctrl-C)."""
        kept = study.user_attrs.get(BASELINES)
        found: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        if "trivial" not in found:
            found["trivial"] = trivial_baseline(self.agent, splits.train, splits.validation)
        if wait and "tfidf" not in found:
            self.busy("Computing the TF-IDF baseline for the report.")
            with suppress(KeyboardInterrupt):
                found["tfidf"] = tfidf_baseline(self.agent, splits.train, splits.validation)
        _note(study, BASELINES, found)


def titles_of(objectives: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Names of the objectives for people; their own where two would read the same."""
    titles = [metric_title(name, labels) for name in objectives]
    return titles if len(set(titles)) == len(titles) else list(objectives)


def name_values(study: Study, names: Sequence[str]) -> None:
    """Set the names under which Optuna and its dashboard show the values, unless they are set."""
    if not metric_names(study):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(names))


def _note(study: Study, key: str, value: Any) -> None:
    with in_words(study._storage):
        if study.user_attrs.get(key, []) != value:
            study.set_user_attr(key, value)


def _with_commas(models: str | Sequence[str] | None) -> str | None:
    return models if models is None or isinstance(models, str) else ",".join(models)


def has_cuda(execution: Execution) -> bool:
    return execution.device.startswith("cuda") or (
        execution.device == "auto" and torch.cuda.is_available()
    )


def foreseen(execution: Execution, device: str) -> Execution:
    """As cells will have it, without starting CUDA here."""
    half = "bf16" if device == "cuda" else "fp32"
    precision = half if execution.precision == "auto" else execution.precision
    return replace(execution, device=device, precision=precision)


def versions() -> str:
    return f"torch {version('torch')} transformers {version('transformers')}"
