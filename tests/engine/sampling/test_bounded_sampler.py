"""TPE in a long study: a window of its trials, and suggestions computed ahead."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.samplers._tpe.sampler import _RELATIVE_PARAMS_KEY
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax._util.attributes import ORIGIN
from supermax.engine.sampling import bounded_sampler
from supermax.engine.sampling.bounded_sampler import BoundedSampler, is_bounded, prepare_next
from supermax.engine.sampling.trial_window import LIMIT, TrialWindow
from supermax.engine.storage.history import TrialHistory
from supermax.space.migration.bulk_write import add_trials

SPACE = {
    "x": optuna.distributions.FloatDistribution(-1, 1),
    "c": optuna.distributions.CategoricalDistribution(["a", "b"]),
}


def some(n: int, directions: int = 1, *, seed: int = 0) -> list[FrozenTrial]:
    chance, trials = random.Random(seed), []
    for number in range(n):
        trial = create_trial(
            values=[chance.random() for _ in range(directions)],
            params={"x": chance.uniform(-1, 1), "c": chance.choice("ab")},
            distributions=SPACE,
            system_attrs={ORIGIN: {"study": "elsewhere", "number": number}},
        )
        trial.number = number
        trials.append(trial)
    return trials


def objective(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", -1, 1) ** 2 + (
        trial.suggest_categorical("c", ["a", "b"]) == "a"
    )


def bounded(study: optuna.Study, sampler: BaseSampler, limit: int = LIMIT) -> BoundedSampler:
    history = TrialHistory(study._study_id)

    def read() -> TrialHistory:
        history.update(study.get_trials(deepcopy=False))
        return history

    return BoundedSampler(sampler, read, limit)


# The window.


def test_window_has_all_trials_of_a_short_study() -> None:
    window, trials = TrialWindow(100), some(100)
    window.add(reversed(trials))
    assert window.trials(optuna.create_study()) == trials


@pytest.mark.parametrize("batch", [1, 700, 4000])
def test_window_has_the_best_trials_and_an_even_share_of_the_others(batch: int) -> None:
    study, window, trials = optuna.create_study(), TrialWindow(500), some(4000)
    for start in range(0, len(trials), batch):
        window.add(trials[start : start + batch])
        window.trials(study)
    kept = window.trials(study)
    assert 450 <= len(kept) <= 550
    assert [t.number for t in kept] == sorted(t.number for t in kept)
    assert set(map(id, sorted(trials, key=lambda t: t.value)[:25])) <= set(map(id, kept))
    tenths = Counter(t.number * 10 // len(trials) for t in kept)
    assert all(40 <= tenths[tenth] <= 75 for tenth in range(10)), tenths


def test_window_of_several_objectives_has_the_front() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    window, trials = TrialWindow(300), some(2000, 2)
    window.add(trials)
    kept = {t.number for t in window.trials(study)}
    study.add_trials(trials)
    assert len(kept) <= 340
    assert {t.number for t in study.best_trials} <= kept


def test_failed_trials_take_no_room() -> None:
    window = TrialWindow(10)
    failed = [create_trial(state=TrialState.FAIL) for _ in range(50)]
    window.add([*failed, *some(10)])
    assert [t.state for t in window.trials(optuna.create_study())] == 10 * [TrialState.COMPLETE]


# The sampler.


@pytest.mark.parametrize("options", [{}, {"multivariate": False}, {"group": True}], ids=str)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_suggestions_are_those_of_optuna_up_to_the_limit(options: dict[str, Any]) -> None:
    found = []
    for wrapped in (False, True):
        study = optuna.create_study(sampler=TPESampler(seed=1, **options))
        if wrapped:
            study.sampler = bounded(study, TPESampler(seed=1, **options))
        study.optimize(objective, n_trials=25)
        found.append([trial.params for trial in study.trials])
    assert found[0] == found[1]


def test_tpe_sees_no_more_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = TPESampler._get_internal_repr

    def counted(self: TPESampler, trials: list[FrozenTrial], *rest: Any) -> Any:
        seen.append(len(trials))
        return original(self, trials, *rest)

    monkeypatch.setattr(TPESampler, "_get_internal_repr", counted)
    study = optuna.create_study()
    study.add_trials(some(900))
    study.sampler = bounded(study, TPESampler(seed=0), limit=300)
    objective(study.ask())
    assert seen[0] == 25
    assert sum(seen[:2]) <= 330


def test_tpe_sees_a_share_of_many_paused_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[FrozenTrial]] = []
    original = TPESampler._get_internal_repr

    def noted(self: TPESampler, trials: list[FrozenTrial], *rest: Any) -> Any:
        seen.append(trials)
        return original(self, trials, *rest)

    monkeypatch.setattr(TPESampler, "_get_internal_repr", noted)
    study = optuna.create_study(pruner=supermax.Promotion(max_reports=9))
    paused = some(900)
    for trial in paused:
        trial.state, trial.values, trial.datetime_complete = TrialState.RUNNING, None, None
        trial.intermediate_values = dict.fromkeys((1, 2, 3), trial.params["x"])
    study.add_trials(paused)
    study.sampler = bounded(study, TPESampler(seed=0), limit=300)
    objective(study.ask())
    best = sorted(paused, key=lambda trial: trial.params["x"])[:25]
    assert {t.number for t in seen[0]} == {t.number for t in best}
    assert sum(map(len, seen[:2])) <= 330


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_gp_learns_from_paused_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float | None]] = []
    original = GPSampler._sample_relative_impl

    def noted(
        self: GPSampler, study: optuna.Study, complete: list[FrozenTrial], *rest: Any
    ) -> dict[str, Any]:
        seen.append([trial.value for trial in complete])
        return original(self, study, complete, *rest)

    monkeypatch.setattr(GPSampler, "_sample_relative_impl", noted)
    study = optuna.create_study(
        sampler=GPSampler(seed=0), pruner=supermax.Promotion(max_reports=9)
    )
    paused = some(12)
    for trial in paused:
        trial.state, trial.values, trial.datetime_complete = TrialState.RUNNING, None, None
        trial.intermediate_values = dict.fromkeys((1, 2, 3), trial.params["x"])
    study.add_trials(paused)
    study.ask(paused[0].distributions)
    assert seen == []  # of Optuna alone: no trial is COMPLETE
    assert is_bounded(study)
    study.sampler = bounded(study, study.sampler)
    study.ask(paused[0].distributions)
    order = sorted(range(12), key=lambda n: paused[n].params["x"])
    assert len(seen) == 1
    assert sorted(range(12), key=lambda n: seen[0][n] or 0.0) == order


def test_only_tpe_and_gp_with_promotion_are_wrapped() -> None:
    promotion = supermax.Promotion()
    for sampler, pruner, wrapped in [
        (TPESampler(), None, True),
        (supermax.PriorSampler(), promotion, True),
        (GPSampler(), promotion, True),
        (GPSampler(), None, False),
        (RandomSampler(), promotion, False),
    ]:
        study = optuna.create_study(sampler=sampler, pruner=pruner)
        assert is_bounded(study) is wrapped, (sampler, pruner)


# Suggestions computed ahead.


def test_a_prepared_suggestion_is_stored_only_with_its_trial() -> None:
    study = optuna.create_study()
    study.add_trials(some(120))
    study.sampler = sampler = bounded(study, TPESampler(seed=0))
    assert sampler.can_prepare()
    before = study.get_trials()
    sampler.prepare(study)
    assert not sampler.can_prepare()
    assert study.get_trials() == before

    study.enqueue_trial({"x": 0.25})
    queued = study.ask()
    assert queued.suggest_float("x", -1, 1) == 0.25
    assert not sampler.can_prepare()  # a queued trial does not take it

    trial, state = study.ask(), sampler.inner._rng.rng.get_state()[2]  # type: ignore[attr-defined]
    objective(trial)
    assert sampler.inner._rng.rng.get_state()[2] == state  # type: ignore[attr-defined]
    assert f"{_RELATIVE_PARAMS_KEY}:0" in study.trials[-1].system_attrs  # constant liar
    assert sampler.can_prepare()


def test_no_suggestion_is_computed_ahead_of_its_bracket() -> None:
    study = optuna.create_study(pruner=optuna.pruners.HyperbandPruner())
    study.add_trials(some(120))
    study.sampler = sampler = bounded(study, TPESampler(seed=0))
    prepare_next(study)
    assert sampler.can_prepare()
    assert -1 <= study.ask().suggest_float("x", -1, 1) <= 1
    study.pruner = optuna.pruners.NopPruner()
    prepare_next(study)
    assert not sampler.can_prepare()


def test_an_error_of_the_sampler_is_raised_for_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study()
    study.add_trials(some(120))
    study.sampler = sampler = bounded(study, TPESampler(seed=0))
    monkeypatch.setattr(TPESampler, "_sample", lambda *_: 1 / 0)
    sampler.prepare(study)
    assert not sampler.can_prepare()
    with pytest.raises(ZeroDivisionError):
        objective(study.ask())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_computes_suggestions_ahead_with_several_workers(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = []
    original = BoundedSampler.prepare
    monkeypatch.setattr(
        BoundedSampler, "prepare", lambda self, study: (prepared.append(1), original(self, study))
    )
    monkeypatch.setattr(bounded_sampler, "_AHEAD_FROM", 20)
    own = TPESampler(seed=0)
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", sampler=own)
    add_trials(study, some(30))

    def its_sampler(trial: optuna.Trial) -> float:
        assert type(trial.study.sampler) is TPESampler
        return objective(trial)

    supermax.optimize(study, its_sampler, 42, workers=workers, progress=False)
    assert study.sampler is own
    assert [t.state for t in study.trials] == 42 * [TrialState.COMPLETE]
    assert len({t.params["x"] for t in study.trials[30:]}) == 12
    assert 1 <= len(prepared) <= 12 if workers > 1 else not prepared
