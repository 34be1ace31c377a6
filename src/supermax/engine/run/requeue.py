"""Queue finished trials again under new numbers."""

from __future__ import annotations

from collections.abc import Iterable

from optuna.study import Study
from optuna.trial import TrialState

from supermax._util.attributes import RECORD, plain_params
from supermax.engine.jobs.tell import FORMAT, repeated_by


def retry(study: Study, states: Iterable[TrialState] = (TrialState.FAIL,)) -> list[int]:
    """Queue every trial in one of `states` to be run again with its parameters.

    Each gets a new number and names the trial it repeats in ``user_attrs["supermax"]["repeats"]``;
    the old trial stays. A trial that was repeated already is not queued again. Return the numbers
    of the trials to repeat. `n_trials` counts all finished trials of the study, so raise it by
    that many in the next call of ``supermax.optimize``.
    """
    wanted = set(states)
    trials = study.get_trials(deepcopy=False)
    repeated = {repeated_by(trial.user_attrs) for trial in trials}
    queued = []
    for trial in trials:
        if trial.state in wanted and trial.number not in repeated:
            fixed = trial.system_attrs.get("fixed_params", {})
            study.enqueue_trial(
                {**fixed, **plain_params(trial)},
                user_attrs={RECORD: {"format": FORMAT, "repeats": trial.number}},
            )
            queued.append(trial.number)
    return queued
