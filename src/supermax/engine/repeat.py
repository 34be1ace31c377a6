"""Running failed trials once more, under new numbers."""

from __future__ import annotations

from collections.abc import Iterable

from optuna.study import Study
from optuna.trial import TrialState

from supermax.engine.protocol import RECORD
from supermax.engine.telling import FORMAT, repeated_by
from supermax.naming import plain_params


def retry(study: Study, states: Iterable[TrialState] = (TrialState.FAIL,)) -> list[int]:
    """Queue every trial in one of `states` to be run again with its parameters.

    Each gets a new number and says which it repeats (``user_attrs["supermax"]["repeats"]``); the
    old one stays. A trial that was repeated already is not queued again. Returns the numbers
    that were queued for repetition. `n_trials` counts finished trials in all, so raise it by as
    many when you call ``supermax.optimize`` next.
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
