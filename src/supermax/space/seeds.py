"""First trials of a search: the space's defaults, given configurations, the best of another
study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import ORIGIN, ParamValue, plain_params
from supermax._util.text import listed
from supermax.errors import UserError
from supermax.space.migration.carry import Unfit, carried
from supermax.space.migration.exclusive import exclusive
from supermax.space.model import Space, flatten


def enqueue(study: Study, space: Space, config: Mapping[str, object]) -> bool:
    """Enqueue a configuration, flat or nested. Missing parameters are sampled. Return False if the
    study has it already. Raises UserError where a value is not in the space."""
    if not isinstance(config, Mapping):
        raise UserError(f"A configuration is a mapping, but this is {config!r:.60}.")
    values = flatten(config)
    if wrong := space.mistakes(values, partial=True):
        raise UserError(listed("This configuration cannot be enqueued:", wrong))
    with exclusive(study._storage, study.study_name):
        return _enqueue(study, values)


def enqueue_defaults(study: Study, space: Space) -> bool:
    """Enqueue the defaults of the space. Return False if the study has them already."""
    values = space.defaults()
    if values is None:
        missing = [
            n
            for n, p in space.parameters.items()
            if not all(branch.has_default for branch in p.branches)
        ]
        raise UserError(f"These parameters have no default: {', '.join(missing)}.")
    if wrong := space.mistakes(values):
        raise UserError(listed("The defaults are not feasible:", wrong))
    with exclusive(study._storage, study.study_name):
        return _enqueue(study, values)


def warm_start(
    study: Study, space: Space, source: Study, top: int = 10
) -> tuple[int, Counter[str]]:
    """Enqueue the best trials of another study that are valid in this space.

    Parameters that only the other study has are left out; those it lacks take their defaults or
    are sampled. Return the number of enqueued trials, and the number of others by reason.
    """
    if not isinstance(source, Study):
        raise UserError(f"The source of a warm start is a study, but this is {source!r:.60}.")
    if len(source.directions) > 1:
        best = source.best_trials
    else:
        complete = source.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        sign = -1.0 if source.direction.name == "MAXIMIZE" else 1.0
        best = sorted(complete, key=lambda trial: sign * trial.values[0])
    with exclusive(study._storage, study.study_name):
        return _enqueue_best(study, space, source, best, top)


def _enqueue_best(
    study: Study, space: Space, source: Study, best: Sequence[FrozenTrial], top: int
) -> tuple[int, Counter[str]]:
    """Enqueue the first `top` configurations that are valid. Those that the study has already
    count: every run of a shared study calls this, and so does a program that is started again."""
    queued, left, found = 0, Counter[str](), list[dict[str, ParamValue]]()
    for trial in best:
        if len(found) == top:
            break
        root = (source.study_name, trial.number)
        fitted = carried(trial, root, set(plain_params(trial)), space)
        if isinstance(fitted, Unfit):
            left[fitted.reason] += 1
            continue
        if not (values := plain_params(fitted)):
            left["it has no parameter of this space"] += 1
            continue
        found += [values] if values not in found else []
        origin = {ORIGIN: {"study": source.study_name, "number": trial.number}}
        if _enqueue(study, values, origin):
            queued += 1
        else:
            left["it is there already"] += 1
    return queued, left


def _enqueue(
    study: Study, values: Mapping[str, object], attributes: Mapping[str, object] | None = None
) -> bool:
    for trial in study.get_trials(deepcopy=False):
        queued = trial.system_attrs.get("fixed_params")
        if queued == values or (trial.params and plain_params(trial) == values):
            return False
    study.enqueue_trial(dict(values), user_attrs=None if attributes is None else dict(attributes))
    return True
