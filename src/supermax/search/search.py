"""Hyperparameter search of an agent: data, space, study and engine put together.

Search.run(): corpus ──split──▶ AgentObjective ──open_locked, run_study──▶ Tuned
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study

from supermax._util.attributes import (
    BASELINES,
    DATA,
    EVALUATED,
    EXPERIMENT,
    NOTICES,
    SETTINGS,
    race_name,
)
from supermax._util.text import ended, metric_title, nearest
from supermax.agents import stored_name
from supermax.engine.promotion.ladder import Promotion
from supermax.engine.promotion.paused_space import FEWEST
from supermax.engine.run.checks import check_options, check_stop
from supermax.engine.run.no_gain import when_to_stop
from supermax.engine.run.options import Callback, RunOptions
from supermax.engine.storage.history import fill_cache
from supermax.engine.storage.locations import find_location
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.memory.disk import Allowance, Demand
from supermax.results.notifying import Notifier
from supermax.results.race import RaceRecord
from supermax.results.tracking import tracked_by
from supermax.run import callback_list, reusing_results, run_study
from supermax.search.cluster import Cluster
from supermax.search.earlier import Earlier, begin_with
from supermax.search.race import Race, Wanted, race_size, with_time_left
from supermax.search.resources import Resources
from supermax.search.settings import Resolved, units
from supermax.search.shared_checkpoints import SharedCheckpoints, on_another_disk
from supermax.search.spaces import with_former
from supermax.search.stopping import with_noise
from supermax.search.tuned import Tuned
from supermax.space import Preset, Space, enqueue_defaults, find_versions, preset, space_of
from supermax.studies import (
    explain_write_errors,
    file_of,
    make_storage,
    name_values,
    open_locked,
    opening_lock,
    stored_space,
    without_password,
)
from supermax.tasks.baselines import fitted_baseline, trivial_baseline
from supermax.tasks.data_notices import weaknesses
from supermax.tasks.data_summary import data_summary
from supermax.tasks.fits import footprints
from supermax.tasks.measures import check_objectives, versions_of
from supermax.tasks.objective import AgentObjective
from supermax.tasks.preflight import (
    DECODING,
    VERSIONS,
    all_of,
    check_corpus,
    check_counts,
    check_known,
    check_limits,
    check_parts,
    check_questions,
    check_space,
    has_fixed_decoding,
    refuse_another,
)
from supermax.tasks.space_fitting import Fitted, fitted
from supermax.tasks.truncation import truncation, truncation_notices
from supermax.tasks.weight_retention import WeightRetention, within_disk
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, cross_validation, split
from supermax.training.models.sources import Source
from supermax.training.steps.execution import Execution


@dataclass(frozen=True)
class Search:
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
    earlier: Sequence[Earlier] = ()
    """Earlier studies whose best configurations are enqueued after the defaults."""
    splits: Splits | None = None
    """Splits of the data; None: the corpus is split at random."""
    top: int = 5
    """Number of best trials whose weights are kept."""
    race: Wanted = "auto"
    """Number of best configurations that race over fresh seeds at the end of the search; True: by
    the number of trials, False: none, "auto": True for all presets but demo, from 10 trials on."""
    folds: int | None = None
    """Folds of a cross-validation over which they race, without the test split; None: fresh seeds
    on the validation split."""
    budget: int | None = None
    """Bytes that kept weights may take on disk; None: no limit but `top`."""
    execution: Execution = field(
        default_factory=lambda: Execution(device="auto", precision="auto", micro_batch=None)
    )
    memory: int | None = None
    """Bytes of a GPU, or of the host's memory without one, that trials may take; None: all that is
    available."""
    workers: int | Literal["auto"] | None = None
    """Number of parallel trials; "auto": by the GPUs of the run and the cores; None: as in
    `options`."""
    cluster: Cluster | None = None
    """Ray cluster that trials run on; None: this machine."""
    resolved: Resolved | None = None
    """Settings to store on the study, for later commands such as refit, with the source of each;
    None: store none."""
    options: RunOptions = field(default_factory=lambda: RunOptions(reuse_cells=True))
    """Options of the run. `n_trials` and `planner`, if given, replace `trials` and the planner of
    the search."""
    track: Sequence[str] = ()
    """Trackers that the trials of the search and of its race are logged to."""
    notify: Sequence[str] = ()
    """Commands and webhooks that are called when the search ends, halts or finds a better
    value."""
    around: Callable[[Study, int, int], AbstractContextManager[object]] | None = None
    """Function that returns a context for the duration of the run (CUDA MPS, say), called with
    the study, the number of parallel trials and the number of devices."""
    tell: Callable[[str], None] = print
    """Called with notices on the data and the space before the first trial."""
    warn: Callable[[str], None] = print
    """Called with a message where the run deviates from what was requested."""
    busy: Callable[[str], None] = lambda _: None
    """Called with a message before slow work that follows the last trial."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "agent", stored_name(self.agent))  # frozen

    @property
    def resources(self) -> Resources:
        return Resources(self.execution, self.memory, self.cluster)

    @cached_property
    def all_splits(self) -> Splits:
        return self.splits or split(self.corpus)

    @cached_property
    def _size(self) -> Preset:
        return preset(self.agent, self.preset, models=_with_commas(self.models))

    @cached_property
    def _machine_fit(self) -> Fitted:
        space = self.space or self._size.space
        if (stored := stored_space(str(self.storage), self.name or self.agent)) is not None:
            space = with_former(space, stored, self.agent)
        return fitted(space, self.resources.device, self.agent)

    @cached_property
    def fit(self) -> Fitted:
        """Space fitted to this machine and to the lengths of the data."""
        fit_length = self.fit_length
        if fit_length is None:
            fit_length = self._size.fit_length and self.space is None
        fit = self._machine_fit
        if fit_length:
            fit = fit.with_length(self.all_splits, self.cache)
        return fit.within_limits()

    def run(self, **changes: Any) -> Tuned:
        """Run the search. `changes` are arguments of supermax.optimize that replace those of
        `options` (workers, timeout, progress, …); `workers` may be "auto"."""
        options, size = self.run_options(**changes), self._size
        # planner=None turns the planning of memory off.
        planned = "planner" not in changes and options.planner is None
        limits = {"epochs": size.epochs, "patience": size.patience, **self.limits}
        objectives, directions = self._checked(limits)
        check_stop(options, len(objectives))
        splits = self.all_splits
        check_parts(self.agent, splits)
        fit = self.fit
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
            DECODING: "chosen",
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
            self.resources.with_device(),
            book=self.resources.measurement_log(),
            top=self.top,
            former_decoding=DECODING not in study.user_attrs[EXPERIMENT],
        )
        if options.n_trials is None:
            options = replace(options, n_trials=self.trials or size.trials)
        with (
            Notifier(study, self.notify, run_dir=options.run_dir, tell=self.warn) as notifier,
            self._tracked(study, options),
        ):
            options = replace(options, listeners=[*options.listeners, notifier])
            summary, race = self._searched(study, objective, options, planned, splits)
            notifier.ended(summary.stopped_by)
        return Tuned(self.agent, study, summary, splits, fit.space, objectives, limits, race)

    def _searched(
        self,
        study: Study,
        objective: AgentObjective,
        options: RunOptions,
        planned: bool,
        splits: Splits,
    ) -> tuple[Summary, RaceRecord | None]:
        """Run the trials, then the race if all are finished."""
        objectives = objective.objectives
        options = replace(options, stop=with_noise(options.stop, study, objectives[0]))
        once_each = reusing_results(study, options)  # a race trains configurations again
        summary, race = self._optimized(study, objective, once_each, planned), None
        if not self._note_baselines(study, splits, wait=summary.complete):
            summary = replace(summary, stopped_by="interrupt")
        if summary.complete:
            options = with_time_left(replace(options, stop=None), summary.seconds)
            trials = min(options.n_trials or 0, summary.finished)
            race, stopped = self._race(study, objective, options, planned, trials)
            summary = replace(summary, stopped_by=stopped or summary.stopped_by)
        return summary, race

    def _tracked(self, study: Study, options: RunOptions) -> AbstractContextManager[object]:
        return tracked_by(study, self.track, run_dir=options.run_dir, tell=self.warn)

    def _race(
        self,
        study: Study,
        objective: AgentObjective,
        options: RunOptions,
        planned: bool,
        trials: int,
    ) -> tuple[RaceRecord | None, str | None]:
        """Race the best configurations of `trials` trials. Return the outcome, and what stopped
        the run."""
        size = race_size(self.race, self.preset, trials, self.folds)
        if size and len(objective.objectives) > 1:
            self.tell("There is no race: configurations race by one objective, not by several.")
            size = 0
        if not size:
            return None, None

        stack, tracked = ExitStack(), False

        def run(race: Study, replicates: AgentObjective, replications: int) -> Summary:
            nonlocal tracked
            run_dir = options.run_dir and race_name(str(options.run_dir), self.folds)
            own = replace(options, n_trials=replications, run_dir=run_dir)
            if not tracked:
                stack.enter_context(self._tracked(race, own))
                tracked = True
            return self._optimized(race, replicates, own, planned)

        defaults = self.fit.space.defaults()
        splits, folds = self.all_splits, self.folds
        with stack:
            return Race(study, objective, size, defaults, run, self.busy, splits, folds).finish()

    def _checked(self, limits: dict[str, Any]) -> tuple[Sequence[str], list[str]]:
        """Return the objectives and their directions. Raises one UserError with all mistakes."""
        names = [self.objectives] if isinstance(self.objectives, str) else self.objectives
        check_corpus(self.corpus)
        classes = len(self.corpus.label_names) or 2
        space = self.space or self._size.space
        checked: tuple[Sequence[str], list[str]] = all_of(
            "The search cannot start:",
            lambda: check_objectives(self.agent, names, classes),
            lambda: self._machine_fit,
            lambda: check_known(self.agent, self.corpus),
            lambda: check_limits(limits, space),
            lambda: check_space(self.agent, space),
            lambda: check_counts(trials=self.trials, top=self.top),
            lambda: race_size(self.race, self.preset, self.trials or 0, self.folds),
            lambda: self.folds and cross_validation(self.all_splits, self.folds),
        )[0]
        return checked

    def _prepare_study(
        self, study: Study, splits: Splits, space: Space, objectives: Sequence[str]
    ) -> None:
        """Name the study's values, store the split that they are computed on, and enqueue the
        space's defaults as the first trial, then configurations of earlier studies."""
        fill_cache(study._storage, study._study_id)
        with explain_write_errors(study._storage):
            name_values(study, titles_of(objectives, self.corpus.label_names))
            if EVALUATED not in study.user_attrs:
                examples = splits.validation.count(self.agent)
                study.set_user_attr(EVALUATED, {"split": "validation", "examples": examples})
            if space.defaults() is not None:
                with opening_lock(study._storage, study.study_name):  # for studies in files
                    enqueue_defaults(study, space)
            begin_with(study, space, self.earlier)

    def run_options(self, **changes: Any) -> RunOptions:
        """Return the options of a run, with the number of parallel trials resolved. Raises
        UserError."""
        known = [each.name for each in fields(RunOptions)]
        for name in changes:
            if name not in known:
                raise UserError(ended(f"run() has no option {name!r}{nearest(name, known)}"))
        try:
            default = self.options.workers if self.workers is None else self.workers
            wanted = units.workers(changes.pop("workers", default))
        except ValueError as error:
            raise UserError(f"workers of run(): {error}.") from None
        options = replace(self.options, **changes)
        options = replace(
            options,
            devices=options.devices or (),
            callbacks=callback_list(options.callbacks),
            stop=when_to_stop(options.stop),  # type: ignore[arg-type]
        )
        check_options(options)
        return replace(options, workers=self.resources.workers(wanted, options.devices))

    def _optimized(
        self, study: Study, objective: AgentObjective, options: RunOptions, planned: bool
    ) -> Summary:
        """Run the study within the memory and the disk space there is."""
        run_dir = Path(options.run_dir or find_location(study).run_dir)
        planner = self.resources.planner(objective, self.tell)
        if planner is not None:
            planner.check_anything_fits(self.fit.sources)
        allowed, notice = self.allowance(run_dir, options)
        if notice:
            self.warn(notice)
        callbacks: list[Callback] = [
            WeightRetention(run_dir, objective.top or 0, allowed.keep),
            *options.callbacks,
        ]
        if options.checkpoints is not None:
            callbacks.insert(0, SharedCheckpoints(options.checkpoints))
        paused_space = options.paused_space
        if paused_space is None and not on_another_disk(options.checkpoints, run_dir):
            paused_space = allowed.paused
        options = replace(
            options,
            workers=allowed.workers,
            paused_space=paused_space,
            callbacks=callbacks,
            planner=planner if planned else options.planner,
        )
        if self.cluster is not None:
            options = replace(options, executor=self.cluster.executor(options.workers))
        around: AbstractContextManager[object] = nullcontext()
        if self.around is not None:
            around = self.around(study, options.workers, max(1, len(options.devices)))
        with around:
            return run_study(study, objective, options)

    def allowance(self, run_dir: Path, options: RunOptions) -> tuple[Allowance, str]:
        """Return the parallel trials and bytes of kept weights that fit on the disk, and a notice
        if they are fewer than requested, else "". Raises EnvironmentFault if no trial fits."""
        advice = "name a storage on another disk (--storage)"
        if options.run_dir:
            advice = "give it a run_dir on another disk"
        elif file_of(self.storage) is None:
            advice = "set XDG_DATA_HOME to a folder on another disk"
        planned = None
        if self.execution.micro_batch is None:
            planned = self.resources.budget().whole * max(1, len(options.devices)) or None
        apart = on_another_disk(options.checkpoints, run_dir)

        def demand(sources: Iterable[Source]) -> Demand:
            found = footprints(self.fit.space, sources, self.agent, self.resources.foreseen())
            paused = FEWEST if isinstance(self.pruner, Promotion) and not apart else 0
            return Demand(found, options.workers, planned, self.top, self.budget, paused, apart)

        sources = self.fit.sources
        by_encoder = {name: demand([source]) for name, source in sources.items()}
        return within_disk(demand(sources.values()), run_dir, advice, by_encoder)

    def _opened(
        self, space: Space, directions: list[str], experiment: dict[str, Any], joined: int
    ) -> Study:
        """Open the study and store the experiment on it. Raises UserError if its trials come from
        another experiment."""
        where, name = str(self.storage), self.name or self.agent
        storage = make_storage(where)
        # A version made by `supermax study migrate` has the trials of earlier ones, but no
        # EXPERIMENT attribute: the newest that has one counts.
        versions = [v for v in find_versions(storage, name) if EXPERIMENT in v.user_attrs]
        before = versions[-1].user_attrs[EXPERIMENT] if versions else None
        refuse_another(name, without_password(where), before, experiment, joined)
        if versions and has_fixed_decoding(before, space_of(versions[-1])):
            experiment = {key: experiment[key] for key in experiment if key != DECODING}
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
            stored = self.resolved.settings.to_store() if self.resolved is not None else None
            if stored is not None and stored != study.user_attrs.get(SETTINGS):
                study.set_user_attr(SETTINGS, stored)
        return study

    def _note_baselines(self, study: Study, splits: Splits, wait: bool) -> bool:
        """Store the baselines on the study, once. TF-IDF takes seconds: without `wait`, and after
        Ctrl-C, it is left to a later run. Return False after Ctrl-C."""
        stored = study.user_attrs.get(BASELINES)
        found: dict[str, Any] = dict(stored) if isinstance(stored, dict) else {}
        if "trivial" not in found:
            found["trivial"] = trivial_baseline(self.agent, splits.train, splits.validation)
        if wait and "tfidf" not in found:
            self.busy("Computing the fitted baseline for the report.")
            try:
                found["tfidf"] = fitted_baseline(self.agent, splits.train, splits.validation)
            except KeyboardInterrupt:
                return False
        _note(study, BASELINES, found)
        return True


def titles_of(objectives: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return readable titles of the objectives; their own names where two titles are the same."""
    titles = [metric_title(name, labels) for name in objectives]
    return titles if len(set(titles)) == len(titles) else list(objectives)


def _note(study: Study, key: str, value: object) -> None:
    """Store a user attribute of the study, unless it has that value already."""
    with explain_write_errors(study._storage):
        if study.user_attrs.get(key, []) != value:
            study.set_user_attr(key, value)


def _with_commas(models: str | Sequence[str] | None) -> str | None:
    return models if models is None or isinstance(models, str) else ",".join(models)


def __getattr__(name: str) -> type[Search]:
    """Return `Search` for its former name, with a DeprecationWarning."""
    if name != "Tuning":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Tuning is now Search; the former name will be removed.", DeprecationWarning, 2)
    return Search
