"""First trials of a search: the space's defaults, given configurations, the best of another
study."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import ORIGIN, ParamValue, plain_params, under_plain_names
from supermax._util.text import listed
from supermax.errors import UserError
from supermax.space.expression import same_value
from supermax.space.migration.carry import Unfit, assumed_of, carried
from supermax.space.migration.exclusive import exclusive
from supermax.space.model import Flat, Space, flatten


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
    chosen, left = best_configurations(source, space, top)
    with exclusive(study._storage, study.study_name):
        queued = enqueue_chosen(study, source.study_name, chosen)
    if known := len(chosen) - queued:
        left["it is there already"] += known
    return queued, left


def best_configurations(
    source: Study, space: Space, top: int, apart: float = 0.0, besides: Flat | None = None
) -> tuple[dict[int, Flat], Counter[str]]:
    """Return the best `top` distinct configurations of a study that are valid in a space, by the
    number of their trials, best first; and the number of better trials that are not valid, by
    reason. With several objectives, the Pareto front comes first, then the first one decides.

    Distinct ones differ in a parameter by more than a share `apart` of its range. A parameter for
    which this space has one value only takes that value. `besides`: configuration to leave out.
    """
    fixed = _fixed(space)
    found: dict[int, Flat] = {}
    left = Counter[str]()
    for trial in _best_first(source):
        if len(found) == top:
            break
        given = _with_fixed(trial, fixed)
        fitted = carried(given, (source.study_name, trial.number), set(given.params), space)
        if isinstance(fitted, Unfit):
            left[fitted.reason] += 1
            continue
        values = plain_params(fitted)
        if set(values) <= {*assumed_of(fitted), *fixed}:
            left["it has no parameter of this space"] += 1
        elif values == besides:
            left["it has the defaults, which run anyway"] += 1
        elif all(difference(space, values, other) > apart for other in found.values()):
            found[trial.number] = values
    return found, left


def _best_first(source: Study) -> list[FrozenTrial]:
    """Return the complete trials of a study that violate no constraint, best first."""
    trials = source.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    feasible = [t for t in trials if not any(by > 0 for by in t.constraints.values())]
    front = {t.number for t in source.best_trials} if len(source.directions) > 1 else set()
    sign = -1.0 if source.directions[0] is StudyDirection.MAXIMIZE else 1.0
    return sorted(feasible, key=lambda t: (t.number not in front, sign * t.values[0]))


def difference(space: Space, one: Flat, other: Flat) -> float:
    """Return the largest difference of a parameter in two configurations, as a share of its range;
    1: a parameter with another choice, another domain, or in one of them only."""
    found = 0.0
    for name in {*one, *other}:
        if name not in one or name not in other:
            return 1.0
        places = {space.active(name, one), space.active(name, other)}
        if len(places) > 1:
            return 1.0
        domain = space.parameters[name].branches[places.pop() or 0].distribution
        found = max(found, _difference(domain, one[name], other[name]))
    return found


def _difference(domain: BaseDistribution, one: ParamValue, other: ParamValue) -> float:
    if isinstance(domain, CategoricalDistribution):
        return float(not same_value(one, other))
    assert isinstance(domain, FloatDistribution | IntDistribution)
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    ends: list[float] = [domain.low, domain.high, one, other]
    low, high, a, b = map(math.log, ends) if domain.log else ends
    return abs(a - b) / (high - low) if high > low else 0.0


def _fixed(space: Space) -> dict[str, tuple[ParamValue, BaseDistribution]]:
    """Return the value and distribution of each parameter that has one value only."""
    found = {}
    for name, parameter in space.parameters.items():
        domains = [branch.distribution for branch in parameter.branches]
        values = [_first(domain) for domain in domains if domain.single()]
        if len(values) == len(domains) and all(same_value(v, values[0]) for v in values):
            found[name] = values[0], domains[0]
    return found


def _first(domain: BaseDistribution) -> ParamValue:
    """Return the first choice, or the low end of a range."""
    found: ParamValue
    if isinstance(domain, CategoricalDistribution):
        found = domain.choices[0]
    else:
        assert isinstance(domain, FloatDistribution | IntDistribution)
        found = domain.low
    return found


def _with_fixed(
    trial: FrozenTrial, fixed: Mapping[str, tuple[ParamValue, BaseDistribution]]
) -> FrozenTrial:
    """Return the trial by the plain names of its parameters, with the values of fixed ones."""
    given = copy.copy(under_plain_names(trial))
    given.params = {**given.params, **{name: value for name, (value, _) in fixed.items()}}
    domains = {name: domain for name, (_, domain) in fixed.items()}
    given.distributions = {**given.distributions, **domains}
    return given


def enqueue_chosen(study: Study, source: str, chosen: Mapping[int, Flat]) -> int:
    """Enqueue configurations of the study named `source`, given by the number of their trials
    there. Those that the study has already are left out: every run of a shared study calls this,
    and so does a program that is started again. Return how many were enqueued. The caller holds
    the lock."""
    return sum(
        _enqueue(study, values, {ORIGIN: {"study": source, "number": number}})
        for number, values in chosen.items()
    )


def _enqueue(
    study: Study, values: Mapping[str, object], attributes: Mapping[str, object] | None = None
) -> bool:
    for trial in study.get_trials(deepcopy=False):
        queued = trial.system_attrs.get("fixed_params")
        if queued == values or (trial.params and plain_params(trial) == values):
            return False
    study.enqueue_trial(dict(values), user_attrs=None if attributes is None else dict(attributes))
    return True
