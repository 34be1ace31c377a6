"""Wrapper of a TPE sampler during a run: bounds the cost of a suggestion, and computes it ahead.

    history ──▶ TrialWindow ──▶ view of the study ──▶ TPE ──▶ joint parameters of a trial
                  with Promotion: paused_as_pruned(), for GPSampler valued_at_rung()
    idle coordinator ──prepare()──▶ joint parameters of the next trial

A prepared suggestion is not stored anywhere before a trial takes it: no trial exists for it, and
nothing is left of it after a crash.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from optuna.distributions import BaseDistribution
from optuna.pruners import HyperbandPruner
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from supermax.engine.promotion.ladder import Promotion
from supermax.engine.sampling.paused_trials import paused_as_pruned
from supermax.engine.sampling.rung_values import valued_at_rung
from supermax.engine.sampling.trial_window import LIMIT, TrialWindow
from supermax.engine.storage.history import TrialHistory
from supermax.errors import SupermaxError

_AHEAD_FROM = 100  # finished trials: one more or less hardly changes a suggestion then


@dataclass(frozen=True)
class _Suggestion:
    """Joint parameters for a trial that does not exist yet."""

    space: dict[str, BaseDistribution]
    params: dict[str, Any]
    attributes: dict[str, Any]
    """System attributes that the sampler sets for the trial."""


class BoundedSampler(BaseSampler):
    """TPE, or a sampler with TPE as `inner`, that sees a window of the finished trials. With
    Promotion also GPSampler, which sees unfinished ones as well."""

    def __init__(
        self, inner: BaseSampler, history: Callable[[], TrialHistory], limit: int = LIMIT
    ) -> None:
        self.inner = inner
        self._history = history
        self._window = TrialWindow(limit)
        self._seen = 0  # finished trials that were added to the window
        self._prepared: _Suggestion | None = None
        self._broken = False

    # Suggestions computed ahead.

    def prepare_if_missing(self, study: Study) -> None:
        if self.can_prepare():
            self.prepare(study)

    def can_prepare(self) -> bool:
        """Return whether the next suggestion is missing, and worth computing ahead."""
        if self._prepared is not None or self._broken:
            return False
        return len(self._history().finished) >= _AHEAD_FROM

    def prepare(self, study: Study) -> None:
        """Compute the next suggestion. An error of the sampler ends this for the run: it will be
        raised again for a trial."""
        trial = create_trial(state=TrialState.RUNNING)
        view = self._view(study)
        notes = _Notes(study._storage, trial._trial_id)
        view._storage = cast(BaseStorage, notes)
        try:
            space = self.inner.infer_relative_search_space(view, trial)
            params = self.inner.sample_relative(view, trial, space)
        except SupermaxError:
            raise
        except Exception:
            self._broken = True
        else:
            self._prepared = _Suggestion(space, params, notes.attributes)

    # The interface of samplers.

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        if self._prepared is not None and _takes_any(trial):
            return dict(self._prepared.space)
        return self.inner.infer_relative_search_space(self._view(study), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        suggestion = self._prepared
        if suggestion is None or not _takes_any(trial) or search_space != suggestion.space:
            return self.inner.sample_relative(self._view(study), trial, search_space)
        self._prepared = None
        for key, value in suggestion.attributes.items():
            study._storage.set_trial_system_attr(trial._trial_id, key, value)
        return suggestion.params

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        view = self._view(study)
        return self.inner.sample_independent(view, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self.inner.reseed_rng()

    def _view(self, study: Study) -> Study:
        if type(study) is not Study:  # a bracket of HyperbandPruner: it selects trials itself
            return study
        view = _View.__new__(_View)
        view.__setstate__(study.__getstate__())
        view.window = self._trials(study)
        return view

    def _trials(self, study: Study) -> list[FrozenTrial]:
        history = self._history()
        self._window.add(history.finished[self._seen :])
        self._seen = len(history.finished)
        trials = self._window.trials(study) + history.unfinished()
        if isinstance(study.pruner, Promotion) and len(study.directions) == 1:
            if uses(GPSampler, self.inner):
                seen = valued_at_rung(trials, study.pruner, study.direction)
            else:
                seen = paused_as_pruned(trials, study.pruner)
            trials = self._window.thinned(study, seen, len(history.trials))
        return sorted(trials, key=lambda trial: trial.number)


class _View(Study):
    """Study with some of its trials."""

    window: list[FrozenTrial]

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        found = [trial for trial in self.window if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found


@dataclass
class _Notes:
    """Storage that keeps the system attributes of a trial that does not exist yet."""

    storage: BaseStorage
    trial_id: int
    attributes: dict[str, Any] = field(default_factory=dict)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        if trial_id == self.trial_id:
            self.attributes[key] = value
        else:
            self.storage.set_trial_system_attr(trial_id, key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)


def _takes_any(trial: FrozenTrial) -> bool:
    """Return whether the trial has no enqueued parameters."""
    return "fixed_params" not in trial.system_attrs


def prepare_next(study: Study) -> None:
    """Compute the next suggestion of a run, if there is none yet: for while all cells are busy.

    Not for one worker, whose suggestion would lack the latest result, and not with
    HyperbandPruner, where it depends on the bracket of the trial.
    """
    if isinstance(study.sampler, BoundedSampler) and not isinstance(study.pruner, HyperbandPruner):
        study.sampler.prepare_if_missing(study)


def is_bounded(study: Study) -> bool:
    """Return whether the sampler of a study is to be wrapped during a run."""
    promotes = isinstance(study.pruner, Promotion) and len(study.directions) == 1
    return uses(TPESampler, study.sampler) or (promotes and uses(GPSampler, study.sampler))


def uses(kind: type[BaseSampler], sampler: BaseSampler) -> bool:
    """Return whether a sampler is of a kind, or draws from such a one as `inner`, or the inner one
    does."""
    inner = getattr(sampler, "inner", None)
    return isinstance(sampler, kind) or (isinstance(inner, BaseSampler) and uses(kind, inner))


def unwrapped(sampler: BaseSampler) -> BaseSampler:
    """Return the sampler that the user gave to the study."""
    return sampler.inner if isinstance(sampler, BoundedSampler) else sampler
