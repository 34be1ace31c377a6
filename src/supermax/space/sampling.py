"""Samplers that know the space: every trial they start is feasible.

    inner sampler ──draws whole configurations──▶ constraints ──first that meets all──▶ trial

A draw goes through the parameters in the order of their conditions, so that only active ones are
drawn; those that share a condition are drawn jointly where the inner sampler can. Draws that
break a constraint are drawn again, by the inner sampler itself. When it finds nothing feasible:

    repair   the inner sampler's last draw, the parameters in the broken constraints redrawn
    prior    whole draws from the prior
    search   backtracking over the parameters that constraints speak of
    witness  the values of a point that is known to be feasible for these, the rest drawn

The last always succeeds, so this ends.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    GridSampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.errors import UserError
from supermax.naming import DRAWN, plain_name
from supermax.space.domains import Branch
from supermax.space.feasible import DRAWS, TooLarge, draw, relevant, search, witness
from supermax.space.model import Flat, Space
from supermax.words import ended, nearest

_OWN_DRAWS = 100
_GP_DRAWS = 5  # it proposes one of two points again and again, at half a second each
_TPE_ROUNDS = 20  # of candidates
_REPAIRS = 1_000
_SEARCH_STEPS = 20_000
_PRIVATE = 2045  # what fits into one of Optuna's attributes


def sampler_for(
    space: Space, sampler: BaseSampler | str | None = None, *, seed: int | None = None
) -> SpaceSampler:
    """An Optuna sampler (TPE by default), or one by its name, made to know the space."""
    if sampler is None or isinstance(sampler, str):
        sampler = _by_name(sampler or "tpe", seed)
    if isinstance(sampler, SpaceSampler):
        return SpaceSampler(space, sampler.inner, seed=seed)
    if isinstance(sampler, PartialFixedSampler):
        raise UserError(
            "PartialFixedSampler fixes values behind the space's back. Fix them in the space: "
            "supermax.space.narrowed(space, {name: value})."
        )
    if isinstance(sampler, (GridSampler, BruteForceSampler)):
        raise UserError(
            f"{type(sampler).__name__} goes through a list of points of its own, so it cannot "
            f"follow a space. Use one of {', '.join(_MAKERS)}."
        )
    if not isinstance(sampler, BaseSampler):
        raise UserError(f"sampler must be an Optuna sampler or a name, but is {sampler!r:.60}.")
    return SpaceSampler(space, sampler, seed=seed)


_MAKERS = {
    "tpe": lambda seed: TPESampler(multivariate=True, seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed),
    "qmc": lambda seed: QMCSampler(seed=seed),
    "nsgaii": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}


def _by_name(name: str, seed: int | None) -> BaseSampler:
    if name not in _MAKERS:
        raise UserError(ended(f"There is no sampler {name!r}{nearest(name, _MAKERS)}"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return _MAKERS[name](seed)  # type: ignore[no-untyped-call]
        except ImportError as error:
            raise UserError(f"The sampler {name!r} needs a package: {error}") from None


class SpaceSampler(BaseSampler):
    """Draws whole, feasible configurations of a space from any other sampler."""

    def __init__(self, space: Space, inner: BaseSampler, *, seed: int | None = None) -> None:
        self.space = space
        self.inner = inner
        self.draws: Counter[int] = Counter()  # trials by the number of draws they took
        self._rng = LazyRandomState(seed)
        self._witness = witness(space)
        self._searchable = True
        self._groups = _groups(space)
        self._limit = _most_draws(inner)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self.space.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        fixed = _queued(trial)
        pen = _pen(self, study, trial)
        values, count, source = self._feasible(pen, fixed)
        stored = self.space.stored(values)
        pen.accept(stored)
        self.draws[count] += 1
        if count > 1:
            note: dict[str, Any] = {"draws": count, "from": source}
            study._storage.set_trial_system_attr(trial._trial_id, DRAWN, note)
        return stored

    def _feasible(self, pen: _Pen, fixed: Mapping[str, Any]) -> tuple[Flat, int, str]:
        """A feasible configuration, the draws it took, and where it comes from."""
        values, count, feasible = pen.propose(fixed, self._limit)
        if feasible:
            return values, count, "own"
        if not isinstance(self.inner, RandomSampler):
            free = relevant(self.space, self.space.broken(values)) - set(fixed)
            kept = {n: v for n, v in values.items() if n not in free} | dict(fixed)
            for repair in range(1, _REPAIRS + 1):
                repaired = draw(self.space, self._rng.rng, kept)
                if not self.space.broken(repaired):
                    return repaired, count + repair, "repair"
            count += _REPAIRS
        return self._last_resort(fixed, count)

    def _last_resort(self, fixed: Mapping[str, Any], count: int) -> tuple[Flat, int, str]:
        rng = self._rng.rng
        for attempt in range(1, _REPAIRS + 1):
            drawn = draw(self.space, rng, fixed)
            if not self.space.broken(drawn):
                return drawn, count + attempt, "prior"
        count += _REPAIRS + 1
        found = self._searched(fixed)
        if found is not None:
            return draw(self.space, rng, {**found, **fixed}), count, "search"
        # A point that is known to be feasible. Queued values it cannot be completed with are
        # kept all the same: the trial says so when it asks for them.
        drawn = draw(self.space, rng, {**self._known(), **fixed})
        return drawn, count, "witness"

    def _searched(self, fixed: Mapping[str, Any]) -> Flat | None:
        if not self._searchable:
            return None
        try:
            return search(self.space, rng=self._rng.rng, fixed=fixed, limit=_SEARCH_STEPS)
        except TooLarge:
            self._searchable = bool(fixed)  # with nothing given, it would be too large again
            return None

    def _known(self) -> Flat:
        names = relevant(self.space, self.space.constraints)
        return {name: value for name, value in self._witness.items() if name in names}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter that the space does not know."""
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._rng.rng.seed()
        self.inner.reseed_rng()

    def __str__(self) -> str:
        return f"{type(self.inner).__name__} within {self.space.name}"


def _most_draws(inner: BaseSampler) -> int:
    """How often a sampler is asked before others help out."""
    if isinstance(inner, RandomSampler):
        return DRAWS  # cheap, and nothing else is the prior given feasibility
    if isinstance(inner, TPESampler):
        return _TPE_ROUNDS * inner._n_ei_candidates
    return _GP_DRAWS if isinstance(inner, optuna.samplers.GPSampler) else _OWN_DRAWS


def _queued(trial: FrozenTrial) -> dict[str, Any]:
    """Values that were queued for this trial, by plain names."""
    fixed = trial.system_attrs.get("fixed_params", {})
    return {plain_name(name): value for name, value in fixed.items()}


def _groups(space: Space) -> dict[str, dict[str, BaseDistribution]]:
    """For each stored name the domains that are active exactly when it is, itself included."""
    by_condition: dict[tuple[str | None, ...], dict[str, BaseDistribution]] = {}
    for (name, position), stored in space.stored_names.items():
        branches = space.parameters[name].branches[: position + 1]
        key = tuple(branch.when for branch in branches)
        if not branches[-1].distribution.single():
            by_condition.setdefault(key, {})[stored] = branches[-1].distribution
    return {stored: group for group in by_condition.values() for stored in group}


# How each kind of sampler draws a whole configuration.


class _Pen:
    """Draws configurations for one trial; accept() is told which one was taken."""

    def __init__(self, owner: SpaceSampler, study: Study, trial: FrozenTrial) -> None:
        self.space, self.inner, self.groups = owner.space, owner.inner, owner._groups
        self.study, self.trial = study, trial

    def propose(self, fixed: Mapping[str, Any], limit: int) -> tuple[Flat, int, bool]:
        """The first feasible draw, or the last of `limit`; how many there were; is it feasible?"""
        for count in range(1, limit + 1):
            values = self.draw(fixed)
            if not self.space.broken(values):
                return values, count, True
        return values, limit, False

    def draw(self, fixed: Mapping[str, Any]) -> Flat:
        relative: dict[str, Any] = {}
        self.begin(relative)

        def choose(name: str, position: int, branch: Branch) -> Any:
            if name in fixed and branch.contains(fixed[name]):
                return fixed[name]
            stored = self.space.stored_names[name, position]
            distribution = branch.distribution
            if distribution.single():
                return distribution.to_external_repr(_only(distribution))
            if stored not in relative:
                self.more(relative, stored)
            if stored in relative and branch.contains(relative[stored]):
                return relative[stored]
            return self.inner.sample_independent(self.study, self.trial, stored, distribution)

        return self.space.walk(choose)

    def begin(self, relative: dict[str, Any]) -> None:
        """Draw what the inner sampler draws jointly, as it would by itself."""
        inferred = self.inner.infer_relative_search_space(self.study, self.trial)
        known = self.space.distributions
        usable = {name: d for name, d in inferred.items() if known.get(name) == d}
        relative.update(self.inner.sample_relative(self.study, self.trial, usable))

    def more(self, relative: dict[str, Any], stored: str) -> None:
        """Draw the group of a name that is needed and not drawn yet."""

    def accept(self, stored: dict[str, Any]) -> None:
        """The draw that was taken, by the names in storage."""


class _WholeSpace(_Pen):
    """A sampler that needs no history (quasi-random) draws all parameters there are at once."""

    def begin(self, relative: dict[str, Any]) -> None:
        open_ones = {n: d for n, d in self.space.distributions.items() if not d.single()}
        relative.update(self.inner.sample_relative(self.study, self.trial, open_ones))


class _Independent(_Pen):
    """A sampler that draws every parameter by itself."""

    def begin(self, relative: dict[str, Any]) -> None:
        pass


class _ByGroup(_Pen):
    """TPE: the parameters that share a condition are drawn jointly, from the trials in which it
    held. Groups that are not active cost nothing.

    TPE makes candidates and takes the one that promises most. What it promises beyond a
    constraint it cannot know, since no trial was ever there, so its first choice is often
    infeasible. Then as many feasible candidates are made as it would have chosen from, and the
    one that promises most among these is taken.
    """

    inner: TPESampler

    def __init__(self, owner: SpaceSampler, study: Study, trial: FrozenTrial) -> None:
        super().__init__(owner, study, trial)
        self._candidates: dict[int, _Candidates] = {}  # by group
        self._best = True
        self._promise = 0.0

    def propose(self, fixed: Mapping[str, Any], limit: int) -> tuple[Flat, int, bool]:
        values = self.draw(fixed)  # of each group the best candidate: TPE's own choice
        if not self.space.broken(values):
            return values, 1, True
        self._best = False
        pool: list[tuple[float, Flat]] = []
        wanted = self.inner._n_ei_candidates if self._candidates else 1
        count = 1
        while count < limit and len(pool) < wanted:
            values = self.draw(fixed)
            count += 1
            if not self.space.broken(values):
                pool.append((self._promise, values))
        if not pool:
            return values, count, False
        return max(pool, key=lambda item: item[0])[1], count, True

    def begin(self, relative: dict[str, Any]) -> None:
        self._promise = 0.0

    def more(self, relative: dict[str, Any], stored: str) -> None:
        group = self.groups[stored]
        if id(group) not in self._candidates:
            made = _Candidates.of(self.inner, self.study, self.trial, group)
            if made is None:  # too few trials yet: one parameter at a time
                return
            self._candidates[id(group)] = made
        candidates = self._candidates[id(group)]
        params, promise = candidates.best() if self._best else candidates.next()
        relative.update(params)
        self._promise += promise

    def accept(self, stored: dict[str, Any]) -> None:
        """Other workers' draws keep away from what this trial is about to try."""
        if not self.inner._constant_liar:
            return
        text = json.dumps(stored)
        key = optuna.samplers._tpe.sampler._RELATIVE_PARAMS_KEY
        for i in range(0, len(text), _PRIVATE):
            self.study._storage.set_trial_system_attr(
                self.trial._trial_id, f"{key}:{i // _PRIVATE}", text[i : i + _PRIVATE]
            )


class _Candidates:
    """TPE's candidates for a group of parameters, each with what it promises."""

    def __init__(self, group: dict[str, BaseDistribution], more: Callable[[], Any]) -> None:
        self._group = group
        self._more = more
        self._samples, self._promises = more()
        self._next = 0

    @classmethod
    def of(
        cls, tpe: Any, study: Study, trial: FrozenTrial, group: dict[str, BaseDistribution]
    ) -> _Candidates | None:
        """From the estimators that TPE itself builds; None before it has begun to learn."""
        rate = tpe._compute_acquisition_func
        noting = copy.copy(tpe)  # other threads go on with the sampler itself
        seen: list[Any] = []

        def noted(samples: Any, *estimators: Any) -> Any:
            seen.append((samples, estimators, rate(samples, *estimators)))
            return seen[-1][2]

        noting._compute_acquisition_func = noted
        noting._sample_relative(study, trial, group)
        if not seen:
            return None
        samples, estimators, promises = seen[-1]
        batches = iter([(samples, promises)])

        def more() -> Any:
            for first in batches:
                return first
            fresh = estimators[0].sample(tpe._rng.rng, tpe._n_ei_candidates)
            return fresh, rate(fresh, *estimators)

        return cls(group, more)

    def best(self) -> tuple[dict[str, Any], float]:
        return self._at(int(np.argmax(self._promises)))

    def next(self) -> tuple[dict[str, Any], float]:
        if self._next == len(self._promises):
            self._samples, self._promises = self._more()
            self._next = 0
        self._next += 1
        return self._at(self._next - 1)

    def _at(self, i: int) -> tuple[dict[str, Any], float]:
        params = {
            name: distribution.to_external_repr(self._samples[name][i].item())
            for name, distribution in self._group.items()
        }
        return params, float(self._promises[i])


def _pen(owner: SpaceSampler, study: Study, trial: FrozenTrial) -> _Pen:
    inner = owner.inner
    if isinstance(inner, TPESampler) and inner._is_multivariate(study):
        return _ByGroup(owner, study, trial)
    if isinstance(inner, (RandomSampler, TPESampler)):
        return _Independent(owner, study, trial)
    if isinstance(inner, QMCSampler):
        return _WholeSpace(owner, study, trial)
    return _Pen(owner, study, trial)


def _only(distribution: BaseDistribution) -> float:
    low = getattr(distribution, "low", None)
    return 0.0 if low is None else float(low)
