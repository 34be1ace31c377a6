"""Requests of running trials, answered from the study.

Suggest, ShouldPrune, RelativeParams, ReadStudy, Attribute ──▶ Reply
Report ──▶ storage
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from math import isnan
from typing import cast

import cloudpickle
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    json_to_distribution,
)
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import CLAIM, CREATION, plain_name, under_plain_names
from supermax.engine.jobs.job import Attempt, Job
from supermax.engine.processes.protocol import (
    Attribute,
    Message,
    ReadStudy,
    RelativeParams,
    Reply,
    ShouldPrune,
    Suggest,
    Task,
    json_or_pickle,
)
from supermax.engine.sampling.bounded_sampler import unwrapped
from supermax.engine.storage.leases import LeaseLost
from supermax.engine.storage.patient import PatientStorage, StudyDeleted
from supermax.engine.trial.branch_names import Names
from supermax.errors import EnvironmentFault

_STUDY_READS = {
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
}


class RequestHandler:
    """Gives cells their tasks, answers their requests, and stores their reports."""

    def __init__(
        self, study: Study, storage: PatientStorage, names: Names, *, volatile: bool = False
    ) -> None:
        """`volatile`: the study ends with this process."""
        self._study = study
        self._storage = storage
        self._names = names
        self._volatile = volatile

    def task_for(self, job: Job, checkpoints: str | None) -> Task:
        """Return the message that starts the next attempt at a trial in a cell. `checkpoints`:
        shared folder or URL of those of the trial."""
        return Task(
            folder=str(job.folder.path),
            attempt=job.attempt,
            study_name=self._study.study_name,
            study_id=self._study._study_id,
            directions=[int(direction) for direction in self._study.directions],
            trial=trial_for_attempt(job),
            env={"CUDA_LAUNCH_BLOCKING": "1"} if job.blocking_launches else {},
            volatile=self._volatile,
            plan=job.provision.plan if job.provision is not None else None,
            checkpoints=checkpoints,
            token=self._storage.token_of(job.trial._trial_id),
        )

    def handle(self, attempt: Attempt, message: Message) -> Reply:
        """Return the reply to a request.

        An error becomes part of the reply and is raised in the objective, where Optuna would raise
        it; only EnvironmentFault, LeaseLost and StudyDeleted are raised here.
        """
        try:
            match message:
                case Attribute(key, value, system):
                    self._attribute(attempt.job, key, value, system)
                case Suggest(name, distribution):
                    return Reply(self._suggest(attempt.job, name, distribution))
                case ShouldPrune():
                    several = len(self._study.directions) > 1  # Optuna prunes with one only
                    return Reply(False if several else attempt.job.trial.should_prune())
                case RelativeParams():
                    return Reply(json_or_pickle(self._relative_params(attempt.job)))
                case ReadStudy(what, args):
                    return Reply(json_or_pickle(self._read_study(what, args)))
        except (EnvironmentFault, LeaseLost, StudyDeleted):
            raise
        except Exception as error:
            return Reply(error=_picklable(error))
        return Reply()

    def store_missed_reports(self, job: Job) -> Exception | None:
        """Store reports of the trial's folder that a killed coordinator had not stored. Return
        the error if they cannot be stored, such as a step the database has no room for."""
        try:
            self._store_missed_reports(job)
        except (EnvironmentFault, LeaseLost, StudyDeleted):
            raise
        except Exception as error:
            return error
        return None

    def _store_missed_reports(self, job: Job) -> None:
        trial_id, cached = job.trial._trial_id, job.trial._cached_frozen_trial
        curve = job.folder.curve()
        stored = cached.intermediate_values
        differing = [s for s in {*curve, *stored} if not _equal(curve.get(s), stored.get(s))]
        if not curve or not differing:
            return
        self._storage.forget_steps(trial_id, min(differing))
        for step in sorted(s for s in curve if s >= min(differing)):
            self._storage.set_trial_intermediate_value(trial_id, step, curve[step])
        cached.intermediate_values = curve

    def store_late_reports(self, attempt: Attempt) -> None:
        """Store reports that the cell of another run wrote after its files were copied here, and
        before its checkpoint was: this attempt began after them."""
        if (source := attempt.job.source) is None:
            return
        trial, first = attempt.job.trial, attempt.first_step
        stored = trial._cached_frozen_trial.intermediate_values
        for step, value in source.curve().items():
            if step not in stored and (first is None or step < first):
                self._storage.set_trial_intermediate_value(trial._trial_id, step, value)
                stored[step] = value
        attempt.job.source = None

    @staticmethod
    def _relative_params(job: Job) -> dict[str, object]:
        params, space = job.trial.relative_params, job.trial.relative_search_space or {}
        job.save_relative_params()
        return {plain_name(n, space[n]) if n in space else n: v for n, v in params.items()}

    def stored_together(self, job: Job) -> AbstractContextManager[None]:
        """Store the parameters that are suggested inside a block in one transaction."""
        return self._storage.parameters_together(job.trial._trial_id)

    def _suggest(self, job: Job, name: str, encoded: BaseDistribution | str) -> float:
        distribution = json_to_distribution(encoded) if isinstance(encoded, str) else encoded
        return float(distribution.to_internal_repr(self.suggest(job, name, distribution)))

    def suggest(self, job: Job, name: str, distribution: BaseDistribution) -> object:
        """Return the value of a parameter, sampled unless it was sampled before."""
        stored = self._names.stored(name, distribution)
        self._apply_fixed(job, name, stored, distribution)
        value = job.trial._suggest(stored, distribution)
        job.save_relative_params()
        return value

    @staticmethod
    def _apply_fixed(job: Job, name: str, stored: str, distribution: BaseDistribution) -> None:
        """Apply an enqueued value to the branch that the trial takes; drop it if that branch does
        not have the choice."""
        fixed = job.trial._fixed_params
        if name not in fixed:
            return
        value = fixed[name]
        if isinstance(distribution, CategoricalDistribution) and value not in distribution.choices:
            job.trial._fixed_params = {k: v for k, v in fixed.items() if k not in (name, stored)}
        elif stored != name:
            job.trial._fixed_params = {**fixed, stored: value}

    def store_report(self, attempt: Attempt, step: int, value: float) -> None:
        """Store a report. It has no reply."""
        trial, cached = attempt.job.trial, attempt.job.trial._cached_frozen_trial
        if attempt.first_step is None and attempt.job.attempt > 1:
            # An earlier attempt may have reported later steps: they are replaced from here on.
            self._storage.forget_steps(trial._trial_id, step)
            kept = {s: v for s, v in cached.intermediate_values.items() if s < step}
            cached.intermediate_values = kept
        attempt.first_step = step if attempt.first_step is None else attempt.first_step
        attempt.last_step = step
        self._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        cached.intermediate_values[step] = value

    def _attribute(self, job: Job, key: str, value: object, system: bool) -> None:
        trial_id, cached = job.trial._trial_id, job.trial._cached_frozen_trial
        if system:
            self._storage.set_trial_system_attr(trial_id, key, value)
            cached.system_attrs[key] = value
        else:
            self._storage.set_trial_user_attr(trial_id, key, value)
            cached.user_attrs[key] = value

    def _read_study(self, what: str, args: list[object]) -> object:
        match what, args:
            case "sampler", []:
                return unwrapped(self._study.sampler)
            case "pruner", []:
                return self._study.pruner
            case "get_trial", [trial_id]:
                return under_plain_names(self._storage.get_trial(cast(int, trial_id)))
            case "get_all_trials", [study_id, None | list() as states]:
                wanted = None if states is None else tuple(map(TrialState, states))
                trials = self._storage.get_all_trials(cast(int, study_id), False, wanted)
                return [under_plain_names(trial) for trial in trials]
        if what not in _STUDY_READS:
            raise RuntimeError(f"{what} is not available inside a trial.")
        return getattr(self._storage, what)(*args)


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (isnan(one) and isnan(other))


def trial_for_attempt(job: Job) -> FrozenTrial:
    """Return the trial for its next attempt: plain parameter names, and no intermediate values or
    constraints of earlier attempts."""
    trial = copy.copy(under_plain_names(job.trial._cached_frozen_trial))
    trial.intermediate_values = {}
    trial.system_attrs = {
        key: value
        for key, value in trial.system_attrs.items()
        if key not in (CLAIM, CREATION) and not key.startswith("constraints")
    }
    return trial


def _picklable(error: Exception) -> Exception:
    """Return `error` if it survives pickling, otherwise a RuntimeError with its text."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
