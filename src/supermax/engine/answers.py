"""What a cell's trial asks and says while it runs, and what the study answers.

Suggest, ShouldPrune, RelativeParams, Look, Attribute ──▶ Reply
Report ──▶ storage
"""

from __future__ import annotations

import copy
from math import isnan
from typing import Any

import cloudpickle
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    json_to_distribution,
)
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.job import Attempt, Job
from supermax.engine.names import Names
from supermax.engine.protocol import (
    Attribute,
    Look,
    Message,
    RelativeParams,
    Reply,
    ShouldPrune,
    Suggest,
    faithful,
)
from supermax.engine.storage import PatientStorage
from supermax.errors import EnvironmentFault
from supermax.naming import CLAIM, CREATION, plain_name, under_plain_names

_STUDY_READS = {
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
}


class Answers:
    def __init__(self, study: Study, storage: PatientStorage, names: Names) -> None:
        self._study = study
        self._storage = storage
        self._names = names

    def to(self, attempt: Attempt, message: Message) -> Reply:
        """Do what the message asks for.

        Errors travel back and are raised in the objective, where Optuna would raise them.
        """
        try:
            match message:
                case Attribute(key, value, system):
                    self._attribute(attempt.job, key, value, system)
                case Suggest(name, distribution):
                    return Reply(self._suggest(attempt.job, name, distribution))
                case ShouldPrune():
                    return Reply(attempt.job.trial.should_prune())
                case RelativeParams():
                    return Reply(faithful(self._relative_params(attempt.job)))
                case Look(what, args):
                    return Reply(faithful(self._look(what, args)))
        except EnvironmentFault:
            raise
        except Exception as error:
            return Reply(error=_portable(error))
        return Reply()

    def catch_up(self, job: Job) -> None:
        """Write down reports that a killed coordinator had not heard or not stored."""
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

    @staticmethod
    def _relative_params(job: Job) -> dict[str, Any]:
        params, space = job.trial.relative_params, job.trial.relative_search_space or {}
        job.keep_drawn()
        return {plain_name(n, space[n]) if n in space else n: v for n, v in params.items()}

    def _suggest(self, job: Job, name: str, portable: Any) -> float:
        distribution: BaseDistribution = (
            json_to_distribution(portable) if isinstance(portable, str) else portable
        )
        return float(distribution.to_internal_repr(self.suggest(job, name, distribution)))

    def suggest(self, job: Job, name: str, distribution: BaseDistribution) -> Any:
        """Draw the parameter, or find it drawn."""
        stored = self._names.stored(name, distribution)
        self._pass_on_fixed(job, name, stored, distribution)
        value = job.trial._suggest(stored, distribution)
        job.keep_drawn()
        return value

    @staticmethod
    def _pass_on_fixed(job: Job, name: str, stored: str, distribution: BaseDistribution) -> None:
        """An enqueued value reaches the branch that is taken, and is left out where that branch
        does not have it."""
        fixed = job.trial._fixed_params
        if name not in fixed:
            return
        value = fixed[name]
        if isinstance(distribution, CategoricalDistribution) and value not in distribution.choices:
            job.trial._fixed_params = {k: v for k, v in fixed.items() if k not in (name, stored)}
        elif stored != name:
            job.trial._fixed_params = {**fixed, stored: value}

    def note(self, attempt: Attempt, step: int, value: float) -> None:
        """Write a report down. Nobody waits for an answer."""
        trial, cached = attempt.job.trial, attempt.job.trial._cached_frozen_trial
        if not attempt.curve_started and attempt.job.attempt > 1:
            # An earlier attempt got further; its curve ends where this one begins.
            self._storage.forget_steps(trial._trial_id, step)
            kept = {s: v for s, v in cached.intermediate_values.items() if s < step}
            cached.intermediate_values = kept
        attempt.curve_started = True
        attempt.last_step = step
        self._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        cached.intermediate_values[step] = value

    def _attribute(self, job: Job, key: str, value: Any, system: bool) -> None:
        trial_id, cached = job.trial._trial_id, job.trial._cached_frozen_trial
        if system:
            self._storage.set_trial_system_attr(trial_id, key, value)
            cached.system_attrs[key] = value
        else:
            self._storage.set_trial_user_attr(trial_id, key, value)
            cached.user_attrs[key] = value

    def _look(self, what: str, args: list[Any]) -> Any:
        if what in ("sampler", "pruner"):
            return getattr(self._study, what)
        if what == "get_trial":
            return under_plain_names(self._storage.get_trial(args[0]))
        if what == "get_all_trials":
            study_id, states = args
            wanted = None if states is None else tuple(TrialState(state) for state in states)
            trials = self._storage.get_all_trials(study_id, deepcopy=False, states=wanted)
            return [under_plain_names(trial) for trial in trials]
        if what not in _STUDY_READS:
            raise RuntimeError(f"{what} is not available inside a trial.")
        return getattr(self._storage, what)(*args)


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (isnan(one) and isnan(other))


def snapshot(job: Job) -> FrozenTrial:
    """The trial as its next attempt shall find it: plain names, no traces of earlier attempts
    that Optuna would take for this one's."""
    trial = copy.copy(under_plain_names(job.trial._cached_frozen_trial))
    trial.intermediate_values = {}
    trial.system_attrs = {
        key: value
        for key, value in trial.system_attrs.items()
        if key not in (CLAIM, CREATION) and not key.startswith("constraints")
    }
    return trial


def _portable(error: Exception) -> Exception:
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
