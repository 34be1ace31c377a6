"""Sampler with prior knowledge: known configurations first, then TPE or a mixture of sources.

    first trials          configurations given to the sampler, one each
    then                  TPE
    or, as a mixture      a fifth, at least: uniform
                          the others: TPE, around one of the best trials, or around the best of
                          the given or enqueued configurations

In a mixture, a source is chosen per trial; the better its trials did, the more often. The choice
is stored with the trial, so a sampler that continues a study knows all choices from the study
alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.samplers._tpe.sampler import _split_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import ParamValue, plain_name, plain_params
from supermax._util.text import counted, nearest, one_line

Source = Literal["configuration", "uniform", "tpe", "incumbent", "prior"]
MIXED: tuple[Source, ...] = ("uniform", "tpe", "incumbent", "prior")
"""Sources between which trials are divided."""
CHOICE = "supermax:source"
"""System attribute of a trial: the source of its parameters."""
_SCALES = (0.03, 0.3)  # of a range: standard deviation around a configuration, log-uniform
_BEST = 3  # trials around which to draw
_GOOD = 0.25  # share of the trials that count as successes of their sources
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Source of a trial's parameters."""

    source: Source
    of: int = -1
    """Index of the configuration, or number of the trial around which to draw."""
    scale: float = 0.0
    """Standard deviation around that trial, as a share of a parameter's range."""


class PriorSampler(BaseSampler):
    """Sampler that starts from configurations known to work.

    The first trials get the given configurations, one each. Later ones are drawn by TPE, or from
    a mixture: by TPE, around one of the best trials, around the best of the given or enqueued
    configurations, or uniformly. Sources whose trials are more often among the best quarter are
    used more often. Parameters that a configuration lacks, or whose value there is out of range,
    are drawn uniformly, so search spaces may be conditional. When the trial of a configuration
    has completed, or was pruned after a report, a warning names the parameters that it did not
    take from there.

    Args:
        configurations:
            Parameters of the first trials. Configurations enqueued with ``study.enqueue_trial``
            have the same effect.
        mixture:
            Draw the later trials from the mixture instead of TPE alone. It needed more epochs in
            the comparison of the page on search quality.
        uniform:
            Smallest share of uniform draws in a mixture.
        seed:
            Seed of the random number generator.
        tpe:
            TPE with other options than the default.
    """

    def __init__(
        self,
        configurations: Iterable[Mapping[str, ParamValue]] = (),
        *,
        mixture: bool = False,
        uniform: float = 0.2,
        seed: int | None = None,
        tpe: TPESampler | None = None,
    ) -> None:
        self.configurations = _checked(configurations)
        self.mixture = _of_type("mixture", mixture, bool, "True or False")
        self.uniform = _share("uniform", uniform)
        seed = None if seed is None else _of_type("seed", seed, Integral, "an integer or None")
        tpe = None if tpe is None else _of_type("tpe", tpe, TPESampler, "a TPESampler or None")
        self.inner = tpe or TPESampler(multivariate=True, seed=seed)
        self._rng = LazyRandomState(None if seed is None else (seed + 1) % 2**32)  # not as TPE
        self._all_used: str | None = None
        """Name of the study in which all configurations have a trial."""

    # The choice of a source.

    def choose(self, study: Study, trial: FrozenTrial) -> BaseSampler:
        """Choose the source of a new trial, and return the sampler that draws from it."""
        if "fixed_params" in trial.system_attrs:  # enqueued
            return self.inner
        trials = study._get_trials(deepcopy=False, use_cache=True)
        choice = self._choice(study, trials)
        study._storage.set_trial_system_attr(trial._trial_id, CHOICE, asdict(choice))
        return self._drawing(choice, trials)

    def _choice(self, study: Study, trials: Sequence[FrozenTrial]) -> Choice:
        if (unused := self._unused(study)) is not None:
            return Choice("configuration", unused)
        if not self.mixture:
            return Choice("tpe")
        rated = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        known = [t for t in rated if _is_given(t)]
        enough = bool(known) or len(rated) >= self.inner._n_startup_trials
        open_to = {"uniform": True, "tpe": True, "incumbent": enough, "prior": bool(known)}
        sources = [source for source in MIXED if open_to[source]]
        rng = self._rng.rng
        weights = probabilities(sources, self._successes(study, rated), self.uniform)
        source = sources[int(rng.choice(len(sources), p=weights))]
        if source in ("uniform", "tpe"):
            return Choice(source)
        best = _best(study, rated if source == "incumbent" else known, _BEST)
        around = best[int(rng.randint(len(best)))]
        scale = math.exp(rng.uniform(*np.log(_SCALES)))
        return Choice(source, around.number, scale)

    def _unused(self, study: Study) -> int | None:
        """Return the index of the first configuration without a trial; None: there is none. All
        trials of the study count, failed ones as well."""
        if self._all_used == study.study_name or not self.configurations:
            return None
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
        choices = [choice for t in trials if (choice := choice_of(t)) is not None]
        used = {choice.of for choice in choices if choice.source == "configuration"}
        for index in range(len(self.configurations)):
            if index not in used:
                return index
        self._all_used = study.study_name
        return None

    def _successes(
        self, study: Study, rated: Sequence[FrozenTrial]
    ) -> dict[Source, tuple[int, int]]:
        """Return, by source, the number of its trials among the best, and of all of them."""
        best = {t.number for t in _best(study, rated, math.ceil(_GOOD * len(rated)))}
        counts: dict[Source, tuple[int, int]] = {}
        for trial in rated:
            if (choice := choice_of(trial)) is not None:
                good, drawn = counts.get(choice.source, (0, 0))
                counts[choice.source] = (good + (trial.number in best), drawn + 1)
        return counts

    def _drawing(self, choice: Choice, trials: Sequence[FrozenTrial]) -> BaseSampler:
        """Return the sampler that draws from a source."""
        if choice.source == "tpe":
            return self.inner
        if choice.source == "uniform":
            return self.inner._random_sampler  # one sequence: with equal seeds, two would repeat
        center: Mapping[str, Any] = {}
        if choice.source == "configuration" and choice.of < len(self.configurations):
            center = self.configurations[choice.of]
        elif choice.source in ("incumbent", "prior"):
            center = next((t.params for t in trials if t.number == choice.of), {})
        return _Around(center, choice.scale, self._rng, self.inner._random_sampler)

    # The interface of samplers.

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.choose(study, trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:  # the source samples parameters one by one, or knows none yet
            return {}
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        choice = choice_of(trial) or Choice("tpe")
        trials = study._get_trials(deepcopy=False, use_cache=True)
        drawing = self._drawing(choice, trials)
        return drawing.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)
        choice = choice_of(trial)
        # Another trial may have ended before it asked for all parameters.
        trained = state is TrialState.COMPLETE or (
            state is TrialState.PRUNED and bool(trial.intermediate_values)
        )
        if not trained or choice is None or choice.source != "configuration":
            return
        if choice.of < len(self.configurations):
            given = self.configurations[choice.of]
            if ignored := _ignored(given, trial):
                _log.warning(
                    "Trial %d did not take %s of configuration %d of PriorSampler: %s. "
                    "Correct the configuration if this is not intended.",
                    trial.number,
                    counted(len(ignored), "parameter"),
                    choice.of + 1,
                    "; ".join(ignored),
                )

    def reseed_rng(self) -> None:
        self._rng.rng.seed()
        self.inner.reseed_rng()


class _Around(RandomSampler):
    """Sampler of configurations around one of them; with a scale of 0, of that one itself.
    Parameters that it lacks are drawn uniformly, in the sequence of `uniform`."""

    def __init__(
        self,
        center: Mapping[str, Any],
        scale: float,
        rng: LazyRandomState,
        uniform: RandomSampler,
    ) -> None:
        self._rng = uniform._rng
        self._center, self._scale, self._rng_around = center, scale, rng

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # Given configurations have the names of the objective, trials those of the storage.
        name = plain_name(param_name, param_distribution) if self._scale == 0 else param_name
        value = self._center.get(name)
        if name not in self._center or not _contains(param_distribution, value):
            return super().sample_independent(study, trial, param_name, param_distribution)
        if self._scale == 0:
            return value
        return nearby(value, param_distribution, self._scale, self._rng_around.rng)


def _checked(configurations: Any) -> list[dict[str, ParamValue]]:
    listed = isinstance(configurations, Iterable) and not isinstance(configurations, Mapping)
    given = list(configurations) if listed else []
    if not listed or not all(isinstance(c, Mapping) for c in given):
        raise TypeError(
            "configurations must be a list of dictionaries from parameters to values, not "
            f"{configurations!r:.80}."
        )
    return [dict(configuration) for configuration in given]


def _of_type(name: str, value: Any, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"{name} must be {wanted}, not {value!r:.80}.")
    return value


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, not {value!r:.80}.")
    return float(value)


def probabilities(
    sources: Sequence[Source], successes: Mapping[Source, tuple[int, int]], uniform: float
) -> list[float]:
    """Return the probability of each source: `uniform` for uniform draws, the rest in proportion
    to the rates of success, where each source starts with one success in two trials."""
    counts = [successes.get(source, (0, 0)) for source in sources]
    rates = [(good + 1) / (drawn + 2) for good, drawn in counts]
    shares = [(1 - uniform) * rate / sum(rates) for rate in rates]
    return [share + uniform * (s == "uniform") for s, share in zip(sources, shares, strict=True)]


def choice_of(trial: FrozenTrial) -> Choice | None:
    """Return the choice that was stored with a trial; None for trials of other samplers."""
    stored = trial.system_attrs.get(CHOICE)
    return None if stored is None else Choice(**stored)


def nearby(
    value: Any, distribution: BaseDistribution, scale: float, rng: np.random.RandomState
) -> Any:
    """Draw a value near another one: numbers from a normal distribution on their scale, cut off at
    the ends; a choice keeps its value but for a share of `scale`."""
    if isinstance(distribution, CategoricalDistribution):
        changes = rng.uniform() < scale
        return distribution.choices[rng.randint(len(distribution.choices))] if changes else value
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if isinstance(distribution, IntDistribution):
        low, high = low - 0.5 * distribution.step, high + 0.5 * distribution.step
    warp, unwarp = (math.log, math.exp) if distribution.log else (float, float)
    start, end = warp(low), warp(high)
    for _ in range(100):
        drawn = rng.normal(warp(value), scale * (end - start))
        if start <= drawn <= end:
            break
    number = unwarp(min(max(drawn, start), end))
    if distribution.step is not None:
        number = distribution.low + distribution.step * round(
            (number - distribution.low) / distribution.step
        )
    number = min(max(number, distribution.low), distribution.high)
    return int(number) if isinstance(distribution, IntDistribution) else float(number)


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):
        return False


def _ignored(given: Mapping[str, Any], trial: FrozenTrial) -> list[str]:
    """Return the parameters of a configuration that its trial did not take, with the reason."""
    asked = {plain_name(n, d): d for n, d in trial.distributions.items()}
    drawn = plain_params(trial)
    reasons = {
        name: f"the objective does not ask for it{nearest(name, set(asked) - set(given))}"
        if name not in asked
        else f"{one_line(repr(value), 40)} is out of range, {drawn[name]!r} was drawn"
        for name, value in given.items()
        if name not in asked or not _contains(asked[name], value)
    }
    return [f"{one_line(name)} ({reason})" for name, reason in reasons.items()]


def _is_given(trial: FrozenTrial) -> bool:
    """Return whether a trial's parameters were given or enqueued."""
    choice = choice_of(trial)
    given = choice is not None and choice.source == "configuration"
    return given or "fixed_params" in trial.system_attrs


def _best(study: Study, trials: Sequence[FrozenTrial], count: int) -> list[FrozenTrial]:
    """Return the best trials, as TPE rates them."""
    return _split_trials(study, list(trials), count)[0]
