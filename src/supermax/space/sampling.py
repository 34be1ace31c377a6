"""Wrapper of Optuna samplers that starts feasible trials only.

    inner sampler ──samples configurations──▶ constraints ──first feasible one──▶ trial

Parameters are sampled in the order of their conditions, so that only active ones are sampled;
those with the same condition are sampled jointly where the inner sampler can. A configuration that
breaks a constraint is rejected, and the inner sampler samples again. When it finds no feasible
one:

    repair   its last configuration, with the parameters of the broken constraints resampled
    prior    rejection sampling from the prior
    search   backtracking over the parameters in constraints
    witness  a feasible point for the parameters in constraints, the others sampled

The last always succeeds, so sampling terminates.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import optuna
from numpy.typing import NDArray
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

from supermax._util.attributes import DRAWN, ParamValue, plain_name
from supermax._util.text import ended, nearest
from supermax.errors import UserError
from supermax.space.domains import Branch
from supermax.space.feasible import (
    DRAWS,
    TooLarge,
    all_values,
    draw_from_prior,
    relevant,
    search,
    witness,
)
from supermax.space.model import Flat, Space
from supermax.space.prior_sampler import PriorSampler

if TYPE_CHECKING:
    from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator

_Samples = dict[str, NDArray[np.float64]]
_Acquisitions = NDArray[np.float64]
_INNER_DRAWS = 100
_GP_DRAWS = 5  # GPSampler repeats one of two points, at half a second each
_TPE_ROUNDS = 20  # of candidates
_REPAIRS = 1_000
_SEARCH_STEPS = 20_000
_MAX_ATTRIBUTE = 2045  # characters of one of Optuna's system attributes


def sampler_for(
    space: Space, sampler: BaseSampler | str | None = None, *, seed: int | None = None
) -> SpaceSampler:
    """Wrap an Optuna sampler, given by itself or by name (TPE by default), for the space."""
    if sampler is None or isinstance(sampler, str):
        sampler = _by_name(sampler or "tpe", seed)
    if isinstance(sampler, SpaceSampler):
        return SpaceSampler(space, sampler.inner, seed=seed)
    if isinstance(sampler, PartialFixedSampler):
        raise UserError(
            "PartialFixedSampler bypasses the space. Fix the values in the space: "
            "supermax.space.narrowed(space, {name: value})."
        )
    if isinstance(sampler, (GridSampler, BruteForceSampler)):
        raise UserError(
            f"{type(sampler).__name__} enumerates its own list of points, so it cannot sample "
            f"a space. Use one of {', '.join(_SAMPLERS)}."
        )
    if not isinstance(sampler, BaseSampler):
        raise UserError(f"sampler must be an Optuna sampler or a name, but is {sampler!r:.60}.")
    return SpaceSampler(space, sampler, seed=seed)


_SAMPLERS = {
    "prior": lambda seed: PriorSampler(mixture=True, seed=seed),
    "tpe": lambda seed: TPESampler(multivariate=True, seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
    "gp": lambda seed: optuna.samplers.GPSampler(
        seed=seed,
        # It models no parameters that only some trials have; its default draws them at random.
        independent_sampler=TPESampler(multivariate=False, seed=seed),
        warn_independent_sampling=False,
    ),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed),
    "qmc": lambda seed: QMCSampler(seed=seed),
    "nsgaii": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}


def _by_name(name: str, seed: int | None) -> BaseSampler:
    if name not in _SAMPLERS:
        raise UserError(ended(f"There is no sampler {name!r}{nearest(name, _SAMPLERS)}"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return _SAMPLERS[name](seed)  # type: ignore[no-untyped-call]
        except ImportError as error:
            raise UserError(f"The sampler {name!r} needs a package: {error}") from None


class SpaceSampler(BaseSampler):
    """Sampler of feasible configurations of a space, drawn by an inner sampler."""

    def __init__(self, space: Space, inner: BaseSampler, *, seed: int | None = None) -> None:
        self.space = space
        self.inner = inner
        self.redraws = 0
        """Number of further samples for a configuration that a completed trial has had."""
        self.draws: Counter[int] = Counter()
        """Number of trials by the number of configurations that were sampled for them."""
        self._rng = LazyRandomState(seed)
        self._witness = witness(space)
        self._searchable = True
        self._groups = _groups(space)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self.space.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Flat:
        fixed = _enqueued(trial)
        proposer = _proposer(self, study, trial)
        values, count, source = self._feasible(proposer, fixed)
        if self.redraws and not fixed:
            values, count, source = self._new(proposer, values, count, source)
        stored = self.space.stored(values)
        proposer.accept(stored)
        self.draws[count] += 1
        if count > 1:
            note: dict[str, int | str] = {"draws": count, "from": source}
            study._storage.set_trial_system_attr(trial._trial_id, DRAWN, note)
        return stored

    def _new(
        self, proposer: _Proposer, values: Flat, count: int, source: str
    ) -> tuple[Flat, int, str]:
        """Return a configuration that no completed trial has had: the given one, or a further
        sample; else the last of these."""
        complete = (TrialState.COMPLETE,)
        known = [t.params for t in proposer.study.get_trials(deepcopy=False, states=complete)]
        for _ in range(self.redraws):
            if self.space.stored(values) not in known:
                break
            proposer.vary()
            values, more, source = self._feasible(proposer, {})
            count += more
        return values, count, source

    def _feasible(
        self, proposer: _Proposer, fixed: Mapping[str, ParamValue]
    ) -> tuple[Flat, int, str]:
        """Return a feasible configuration, the number of samples, and the stage that found it."""
        values, count, feasible = proposer.propose(fixed, _max_draws(proposer.inner))
        if feasible:
            return values, count, "own"
        if not isinstance(proposer.inner, RandomSampler):
            free = relevant(self.space, self.space.broken(values)) - set(fixed)
            kept = {n: v for n, v in values.items() if n not in free} | dict(fixed)
            for repair in range(1, _REPAIRS + 1):
                repaired = draw_from_prior(self.space, self._rng.rng, kept)
                if not self.space.broken(repaired):
                    return repaired, count + repair, "repair"
            count += _REPAIRS
        return self._fallback(fixed, count)

    def _fallback(self, fixed: Mapping[str, ParamValue], count: int) -> tuple[Flat, int, str]:
        rng = self._rng.rng
        for attempt in range(1, _REPAIRS + 1):
            drawn = draw_from_prior(self.space, rng, fixed)
            if not self.space.broken(drawn):
                return drawn, count + attempt, "prior"
        count += _REPAIRS + 1
        found = self._search(fixed)
        if found is not None:
            return draw_from_prior(self.space, rng, {**found, **fixed}), count, "search"
        # Enqueued values that contradict the feasible point are kept: Space.sample raises an error
        # that names the broken constraints.
        drawn = draw_from_prior(self.space, rng, {**self._relevant_witness(), **fixed})
        return drawn, count, "witness"

    def _search(self, fixed: Mapping[str, ParamValue]) -> Flat | None:
        if not self._searchable:
            return None
        try:
            return search(self.space, rng=self._rng.rng, fixed=fixed, limit=_SEARCH_STEPS)
        except TooLarge:
            self._searchable = bool(fixed)  # without fixed values, it would be too large again
            return None

    def _relevant_witness(self) -> Flat:
        names = relevant(self.space, self.space.constraints)
        return {name: value for name, value in self._witness.items() if name in names}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> object:
        """Sample a parameter that is not in the space."""
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


def _max_draws(inner: BaseSampler) -> int:
    """Return the number of configurations of the inner sampler before the fallbacks."""
    if isinstance(inner, RandomSampler):
        return DRAWS  # cheap, and rejection alone keeps the prior's distribution
    if isinstance(inner, TPESampler):
        return _TPE_ROUNDS * inner._n_ei_candidates
    return _GP_DRAWS if isinstance(inner, optuna.samplers.GPSampler) else _INNER_DRAWS


def _enqueued(trial: FrozenTrial) -> Flat:
    """Return the values that were enqueued for this trial, by plain names."""
    fixed = trial.system_attrs.get("fixed_params", {})
    return {plain_name(name): value for name, value in fixed.items()}


def _groups(space: Space) -> dict[str, dict[str, BaseDistribution]]:
    """Return, by stored name, the distributions that are active exactly when it is, its own
    included."""
    by_condition: dict[tuple[str | None, ...], dict[str, BaseDistribution]] = {}
    for (name, position), stored in space.stored_names.items():
        branches = space.parameters[name].branches[: position + 1]
        key = tuple(branch.when for branch in branches)
        if not branches[-1].distribution.single():
            by_condition.setdefault(key, {})[stored] = branches[-1].distribution
    return {stored: group for group in by_condition.values() for stored in group}


class _Proposer:
    """Source of configurations for one trial, from an inner sampler of any kind."""

    def __init__(
        self, owner: SpaceSampler, inner: BaseSampler, study: Study, trial: FrozenTrial
    ) -> None:
        self.space, self.inner, self.groups = owner.space, inner, owner._groups
        self.study, self.trial = study, trial

    def propose(self, fixed: Mapping[str, ParamValue], limit: int) -> tuple[Flat, int, bool]:
        """Return the first feasible configuration, or the last of `limit`; the number of samples;
        and whether it is feasible."""
        for count in range(1, limit + 1):
            values = self.draw(fixed)
            if not self.space.broken(values):
                return values, count, True
        return values, limit, False

    def draw(self, fixed: Mapping[str, ParamValue]) -> Flat:
        """Sample one configuration, feasible or not."""
        relative: Flat = {}
        self.sample_joint(relative)

        def choose(name: str, position: int, branch: Branch) -> ParamValue:
            if name in fixed and branch.contains(fixed[name]):
                return fixed[name]
            stored = self.space.stored_names[name, position]
            distribution = branch.distribution
            if distribution.single():
                return next(all_values(branch, None))
            if stored not in relative:
                self.sample_group(relative, stored)
            if stored in relative and branch.contains(relative[stored]):
                return relative[stored]
            value: ParamValue = self.inner.sample_independent(
                self.study, self.trial, stored, distribution
            )
            return value

        return self.space.walk(choose)

    def sample_joint(self, relative: Flat) -> None:
        """Add the parameters that the inner sampler samples jointly from the start."""
        inferred = self.inner.infer_relative_search_space(self.study, self.trial)
        known = self.space.distributions
        usable = {name: d for name, d in inferred.items() if known.get(name) == d}
        relative.update(self.inner.sample_relative(self.study, self.trial, usable))

    def sample_group(self, relative: Flat, stored: str) -> None:
        """Add the parameters of the group of `stored`, which is active and not sampled yet."""

    def vary(self) -> None:
        """Have `propose` return another configuration than before, as far as possible."""

    def accept(self, stored: Flat) -> None:
        """Record the configuration that was taken, by its names in storage."""


class _WholeSpace(_Proposer):
    """Proposer for QMCSampler, which samples all parameters at once without a history."""

    def sample_joint(self, relative: Flat) -> None:
        varying = {n: d for n, d in self.space.distributions.items() if not d.single()}
        relative.update(self.inner.sample_relative(self.study, self.trial, varying))


class _Independent(_Proposer):
    """Proposer for samplers that sample every parameter independently."""

    def sample_joint(self, relative: Flat) -> None:
        pass


class _ByGroup(_Proposer):
    """Proposer for multivariate TPE: parameters with the same condition are sampled jointly, from
    the trials in which it held. Inactive groups cost nothing.

    TPE takes the candidate with the highest acquisition value. It has no trials in the infeasible
    region, where that value is an extrapolation, so its first choice is often infeasible. Then as
    many feasible candidates are sampled as TPE would choose from, and the one with the highest
    acquisition value is taken.
    """

    inner: TPESampler

    def __init__(
        self, owner: SpaceSampler, inner: TPESampler, study: Study, trial: FrozenTrial
    ) -> None:
        super().__init__(owner, inner, study, trial)
        self._candidates: dict[int, _Candidates] = {}  # by group
        self._take_best = True
        self._acquisition = 0.0

    def propose(self, fixed: Mapping[str, ParamValue], limit: int) -> tuple[Flat, int, bool]:
        values = self.draw(fixed)  # the best candidate of each group: TPE's own choice
        if not self.space.broken(values):
            return values, 1, True
        self._take_best = False
        pool: list[tuple[float, Flat]] = []
        wanted = self.inner._n_ei_candidates if self._candidates else 1
        count = 1
        while count < limit and len(pool) < wanted:
            values = self.draw(fixed)
            count += 1
            if not self.space.broken(values):
                pool.append((self._acquisition, values))
        if not pool:
            return values, count, False
        return max(pool, key=lambda item: item[0])[1], count, True

    def vary(self) -> None:
        self._take_best = False

    def sample_joint(self, relative: Flat) -> None:
        self._acquisition = 0.0

    def sample_group(self, relative: Flat, stored: str) -> None:
        group = self.groups[stored]
        if id(group) not in self._candidates:
            made = _Candidates.of(self.inner, self.study, self.trial, group)
            if made is None:  # too few trials yet: sample each parameter independently
                return
            self._candidates[id(group)] = made
        candidates = self._candidates[id(group)]
        params, acquisition = candidates.best() if self._take_best else candidates.next()
        relative.update(params)
        self._acquisition += acquisition

    def accept(self, stored: Flat) -> None:
        """Store the configuration for TPE's constant liar, which keeps parallel trials apart."""
        if not self.inner._constant_liar:
            return
        text = json.dumps(stored)
        key = optuna.samplers._tpe.sampler._RELATIVE_PARAMS_KEY
        for i in range(0, len(text), _MAX_ATTRIBUTE):
            self.study._storage.set_trial_system_attr(
                self.trial._trial_id, f"{key}:{i // _MAX_ATTRIBUTE}", text[i : i + _MAX_ATTRIBUTE]
            )


class _Candidates:
    """TPE's candidates for a group of parameters, each with its acquisition value."""

    def __init__(
        self,
        group: dict[str, BaseDistribution],
        samples: _Samples,
        acquisitions: _Acquisitions,
        more: Callable[[], tuple[_Samples, _Acquisitions]],
    ) -> None:
        self._group = group
        self._samples, self._acquisitions = samples, acquisitions
        self._more = more
        self._next = 0

    @classmethod
    def of(
        cls, tpe: TPESampler, study: Study, trial: FrozenTrial, group: dict[str, BaseDistribution]
    ) -> _Candidates | None:
        """Return candidates from the density estimators that TPE builds; None during its start-up
        trials."""
        acquisition = tpe._compute_acquisition_func
        recorder = copy.copy(tpe)  # the sampler itself may be in use by other threads
        made: _Candidates | None = None

        def record(
            samples: _Samples, below: _ParzenEstimator, above: _ParzenEstimator
        ) -> _Acquisitions:
            nonlocal made

            def more() -> tuple[_Samples, _Acquisitions]:
                fresh = below.sample(tpe._rng.rng, tpe._n_ei_candidates)
                return fresh, acquisition(fresh, below, above)

            made = cls(group, samples, acquisition(samples, below, above), more)
            return made._acquisitions

        vars(recorder)["_compute_acquisition_func"] = record
        recorder._sample_relative(study, trial, group)
        return made

    def best(self) -> tuple[Flat, float]:
        return self._at(int(np.argmax(self._acquisitions)))

    def next(self) -> tuple[Flat, float]:
        if self._next == len(self._acquisitions):
            self._samples, self._acquisitions = self._more()
            self._next = 0
        self._next += 1
        return self._at(self._next - 1)

    def _at(self, i: int) -> tuple[Flat, float]:
        params: Flat = {
            name: distribution.to_external_repr(self._samples[name][i].item())
            for name, distribution in self._group.items()
        }
        return params, float(self._acquisitions[i])


def _proposer(owner: SpaceSampler, study: Study, trial: FrozenTrial) -> _Proposer:
    inner = owner.inner
    if isinstance(inner, PriorSampler):
        inner = inner.choose(study, trial)
    if isinstance(inner, TPESampler) and inner._is_multivariate(study):
        return _ByGroup(owner, inner, study, trial)
    if isinstance(inner, (RandomSampler, TPESampler)):
        return _Independent(owner, inner, study, trial)
    if isinstance(inner, QMCSampler):
        return _WholeSpace(owner, inner, study, trial)
    return _Proposer(owner, inner, study, trial)
