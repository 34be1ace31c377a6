"""Results of completed trials for later trials with the same configuration, which do not run.

    Job ──configure()──▶ parameters ──CompletedTrials.original_of()──▶ its number
                                              └──▶ copy_result(): reports, attributes ──▶ Evidence

Each step can be repeated: after a kill, the next run finds the same trial and copies it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import RECORD
from supermax.engine.jobs.job import Job
from supermax.engine.ranking import copied_from
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.trial.faults import Evidence
from supermax.engine.trial.outcome import COMPLETE, Outcome

Configuration = frozenset[tuple[str, float]]
"""Parameters that a trial suggested: names in storage, and values as storage has them."""


def configuration_key(trial: FrozenTrial) -> Configuration:
    """Return the configuration of a trial. Parameters of other branches are not part of it."""
    distributions = trial.distributions
    return frozenset(
        (name, float(distributions[name].to_internal_repr(value)))
        for name, value in trial.params.items()
    )


class CompletedTrials:
    """Index of the trials that ran and completed, by configuration."""

    def __init__(self) -> None:
        self._by_hash: dict[int, list[FrozenTrial]] = {}
        self._seen = 0

    def add(self, finished: Sequence[FrozenTrial]) -> None:
        """Add finished trials. `finished` has those of earlier calls, in the same order."""
        for trial in finished[self._seen :]:
            ran = trial.state is TrialState.COMPLETE and copied_from(trial) is None
            if ran and trial.params:
                self._by_hash.setdefault(hash(configuration_key(trial)), []).append(trial)
        self._seen = len(finished)

    def original_of(self, trial: FrozenTrial) -> FrozenTrial | None:
        """Return the first completed trial with the same configuration; None: there is none, or
        the configuration was enqueued, so that it is wanted again."""
        if not trial.params or "fixed_params" in trial.system_attrs:
            return None
        own = configuration_key(trial)
        found = [t for t in self._by_hash.get(hash(own), ()) if configuration_key(t) == own]
        return min(found, key=lambda each: each.number, default=None)


class ResultReuse:
    """Finds and copies the results of completed trials of a run's study."""

    def __init__(self, storage: PatientStorage, directions: int) -> None:
        self._storage, self._directions = storage, directions
        self._completed = CompletedTrials()

    def original_of(self, job: Job) -> FrozenTrial | None:
        """Return the trial whose result a job gets; None: it has to run."""
        self._completed.add(self._storage.history().finished)
        return self._completed.original_of(job.trial._cached_frozen_trial)

    def copy_result(self, job: Job, original: FrozenTrial) -> Evidence:
        """Copy reports, attributes and constraints to a job's trial. Return how it ends."""
        trial_id, cached = job.trial._trial_id, job.trial._cached_frozen_trial
        for step, value in original.intermediate_values.items():
            self._storage.set_trial_intermediate_value(trial_id, step, value)
            cached.intermediate_values[step] = value
        for key, value in original.user_attrs.items():
            if key != RECORD:
                self._storage.set_trial_user_attr(trial_id, key, value)
                cached.user_attrs[key] = value
        for key, value in original.system_attrs.items():
            if key.startswith("constraints"):
                self._storage.set_trial_system_attr(trial_id, key, value)
                cached.system_attrs[key] = value
        job.result_of = original.number
        outcome = Outcome(job.attempt, COMPLETE, values=tuple(original.values))
        return Evidence(outcome=outcome, directions=self._directions)
