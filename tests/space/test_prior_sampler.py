"""Sampler with prior knowledge: given configurations, then a mixture."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

import supermax
from supermax.space import Space, load, sampler_for
from supermax.space.prior_sampler import (
    MIXED,
    PriorSampler,
    choice_of,
    nearby,
    probabilities,
)

KNOWN = [{"x": 0.25, "kind": "b", "depth": 2}, {"x": -0.5, "kind": "a"}]


def conditional(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -1, 1)
    if trial.suggest_categorical("kind", ["a", "b"]) == "b":
        return x**2 + trial.suggest_int("depth", 1, 8) / 8
    return x**2 + trial.suggest_float("rate", 1e-4, 1, log=True)


def searched(sampler: PriorSampler, trials: int, objective: Any = conditional) -> optuna.Study:
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=trials, catch=ValueError)
    return study


def test_parameters_of_a_configuration_that_its_trial_did_not_take_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = {"x": 0.25, "kind": "b", "depth": 2}
    searched(PriorSampler([good, {**KNOWN[1], "rat": 0.1}, {**good, "x": 3, "depth": 9}]), 5)
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "Trial 1 did not take 1 parameter of configuration 2 of PriorSampler: rat (the objective "
        "does not ask for it; did you mean 'rate'?). Correct the configuration if this is not "
        "intended."
    )
    assert (
        "Trial 2 did not take 2 parameters of configuration 3 of PriorSampler: x (3 is " in second
    )
    assert "depth (9 is out of range, " in second


def test_pruned_trials_are_compared_with_their_configuration_once_they_have_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def pruned(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0, 1)
        if trial.number:
            trial.report(0.5, 1)
        raise optuna.TrialPruned

    searched(PriorSampler([{"y": 0.5}, {"y": 0.5}]), 2, pruned)
    (only,) = (record.getMessage() for record in caplog.records)
    assert only.startswith("Trial 1 did not take 1 parameter of configuration 2")


def source_of(trial: optuna.Trial) -> str:
    choice = choice_of(trial.study._storage.get_trial(trial._trial_id))
    assert choice is not None
    return choice.source


def sources(study: optuna.Study) -> Counter[str]:
    choices = [choice_of(trial) for trial in study.trials]
    return Counter(choice.source for choice in choices if choice is not None)


def test_first_trials_have_the_given_configurations() -> None:
    study = searched(PriorSampler(KNOWN, seed=0), 3)
    assert study.trials[0].params == KNOWN[0]
    assert study.trials[1].params | {"rate": None} == KNOWN[1] | {"rate": None}
    assert choice_of(study.trials[2]).source != "configuration"  # type: ignore[union-attr]


def test_values_that_do_not_fit_are_drawn() -> None:
    study = searched(PriorSampler([{"x": 7.0, "kind": "c", "more": 1}], seed=0), 1)
    assert -1 <= study.trials[0].params["x"] <= 1
    assert study.trials[0].params["kind"] in ("a", "b")


def test_parameters_that_configurations_lack_are_no_draws_of_uniform_trials() -> None:
    study = searched(PriorSampler([{}, {}], mixture=True, uniform=1.0, seed=0), 6)
    assert sources(study) == {"configuration": 2, "uniform": 4}
    assert len({trial.params["x"] for trial in study.trials}) == 6


@pytest.mark.parametrize("uniform", [0.2, 0.6])
def test_at_least_the_share_of_trials_is_uniform(uniform: float) -> None:
    """Uniform draws never win here."""

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0, 1)
        return float(source_of(trial) == "uniform")

    study = searched(
        PriorSampler([{"x": 0.5}], mixture=True, uniform=uniform, seed=0), 300, objective
    )
    drawn = sources(study)
    assert drawn["uniform"] >= (uniform - 0.07) * 300
    assert all(drawn[source] > 10 for source in MIXED)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=4, max_size=4),
    st.floats(0, 1),
)
def test_weights_follow_success(counts: list[tuple[int, int]], uniform: float) -> None:
    seen = {s: (good, good + bad) for s, (good, bad) in zip(MIXED, counts, strict=True)}
    weights = probabilities(MIXED, seen, uniform)
    assert math.isclose(sum(weights), 1)
    assert weights[MIXED.index("uniform")] >= uniform
    others = [s for s in MIXED if s != "uniform"]
    by_rate = sorted(others, key=lambda s: (seen[s][0] + 1) / (seen[s][1] + 2))
    found = [weights[MIXED.index(s)] for s in by_rate]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(found))


def test_a_source_whose_trials_are_better_is_used_more_often() -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        return x - (source_of(trial) == "incumbent")

    drawn = sources(searched(PriorSampler([{"x": 0.5}], mixture=True, seed=1), 200, objective))
    assert drawn["incumbent"] > max(drawn["tpe"], drawn["prior"])


def test_the_same_seed_draws_the_same_trials() -> None:
    one, other, third = (
        [t.params for t in searched(PriorSampler(KNOWN, mixture=True, seed=seed), 40).trials]
        for seed in (5, 5, 6)
    )
    assert one == other != third


def test_no_configuration_is_drawn_twice() -> None:
    """Start-up trials of TPE and uniform ones are of the same random sampler."""
    drawn = [t.params["x"] for t in searched(PriorSampler(mixture=True, seed=3), 30).trials]
    assert len(set(drawn)) == 30


def test_a_new_sampler_continues_from_the_study_alone() -> None:
    study = searched(PriorSampler(KNOWN, mixture=True, seed=0), 1)
    study.sampler = PriorSampler(KNOWN, mixture=True, seed=1)
    study.optimize(conditional, n_trials=19)
    assert [t.params["x"] for t in study.trials[:2]] == [0.25, -0.5]
    assert sources(study)["configuration"] == 2
    again = PriorSampler(KNOWN, mixture=True, seed=1)
    rated = study.trials
    counts = again._successes(study, rated)
    assert {s: drawn for s, (_, drawn) in counts.items()} == dict(sources(study))


def test_a_configuration_that_fails_is_not_tried_again() -> None:
    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_float("x", -1, 1) == 0.25:
            raise ValueError
        return 0.0

    study = searched(PriorSampler([{"x": 0.25}, {"x": 0.5}], seed=0), 5, objective)
    assert [t.params["x"] for t in study.trials[:2]] == [0.25, 0.5]
    assert study.trials[0].state is TrialState.FAIL
    assert sources(study)["configuration"] == 2


def test_enqueued_configurations_are_prior_knowledge() -> None:
    study = optuna.create_study(sampler=PriorSampler(mixture=True, seed=0))
    study.enqueue_trial({"x": 0.1, "kind": "a", "rate": 0.01})
    study.optimize(conditional, n_trials=60)
    assert study.trials[0].params["x"] == 0.1
    around = [choice_of(t) for t in study.trials]
    assert {c.of for c in around if c is not None and c.source == "prior"} == {0}


@pytest.mark.parametrize("known", [[], KNOWN], ids=["none", "two"])
def test_without_a_mixture_it_is_tpe_after_enqueued_configurations(known: Any) -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(multivariate=True, seed=4))
    for configuration in known:
        study.enqueue_trial(configuration)

    def objective(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", -1, 1) ** 2 + trial.suggest_int("depth", 1, 8)

    study.optimize(objective, n_trials=25)
    given = [{"depth": 3} | dict(configuration) for configuration in known]
    same = searched(PriorSampler(given, seed=4), 25, objective)
    if not known:
        assert [t.params for t in same.trials] == [t.params for t in study.trials]
    assert set(sources(same)) <= {"configuration", "tpe"}


def test_several_objectives_and_constraints() -> None:
    def objective(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("c", 0.5 - x)
        return x, 1 - x

    sampler = PriorSampler(KNOWN, mixture=True, seed=0)
    study = optuna.create_study(directions=["minimize"] * 2, sampler=sampler)
    study.optimize(objective, n_trials=60)
    around = [c.of for t in study.trials if (c := choice_of(t)) and c.source == "incumbent"]
    assert around
    assert all(study.trials[number].params["x"] >= 0.5 for number in around[5:])


DISTRIBUTIONS: list[tuple[BaseDistribution, Any]] = [
    (FloatDistribution(-2, 3), 1.5),
    (FloatDistribution(1e-5, 1e-1, log=True), 1e-5),
    (FloatDistribution(0, 1, step=0.25), 0.75),
    (IntDistribution(1, 9, step=2), 9),
    (IntDistribution(8, 512, log=True), 64),
    (CategoricalDistribution([1, None, "c"]), None),
    (IntDistribution(3, 3), 3),
]


@pytest.mark.parametrize(("distribution", "value"), DISTRIBUTIONS, ids=str)
def test_draws_nearby_are_in_the_domain(distribution: BaseDistribution, value: Any) -> None:
    rng = np.random.RandomState(0)
    for scale in (1e-9, 0.03, 0.3, 5.0):
        drawn = [nearby(value, distribution, scale, rng) for _ in range(100)]
        for each in drawn:
            internal = distribution.to_internal_repr(each)
            assert distribution._contains(internal)
            assert type(each) is type(distribution.to_external_repr(internal))
        if scale == 1e-9:
            assert all(each == pytest.approx(value) for each in drawn)
        elif scale == 5.0 and not distribution.single():
            assert len(set(drawn)) > 2


@pytest.mark.parametrize("wrong", [-0.1, 1.5, math.nan, "a", True])
def test_a_wrong_share_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="uniform must be a number from 0 to 1"):
        PriorSampler(uniform=wrong)


@pytest.mark.parametrize("wrong", [{"x": 1}, [3], "ab", None, 5])
def test_wrong_configurations_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="configurations must be"):
        PriorSampler(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mixture": "no"},
        {"mixture": 0},
        {"seed": "1"},
        {"seed": 1.0},
        {"seed": True},
        {"tpe": "tpe"},
        {"tpe": optuna.samplers.RandomSampler()},
    ],
)
def test_options_of_a_wrong_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be "):
        PriorSampler(**wrong)


# In a space, and in a run.


def test_trials_of_a_space_are_feasible() -> None:
    space = load("criteria")
    study = optuna.create_study(sampler=sampler_for(space, PriorSampler(mixture=True, seed=0)))
    supermax.space.enqueue_defaults(study, space)
    for _ in range(40):
        trial = study.ask()
        values = space.sample(trial)
        study.tell(trial, float(len(str(values))))
    drawn = sources(study)
    assert set(drawn) == set(MIXED)
    around = [choice_of(t) for t in study.trials]
    assert any(c is not None and c.source == "prior" and c.of == 0 for c in around)


def _objective(trial: Any) -> float:
    return conditional(trial)


def test_configurations_name_parameters_of_all_branches_alike() -> None:
    branches = [
        {"when": "a == 'x'", "type": "float", "low": 0.0, "high": 1.0},
        {"when": "a == 'y'", "type": "float", "low": 5.0, "high": 9.0},
    ]
    space = Space(name="s", parameters={"a": {"choices": ["x", "y"]}, "b": branches})
    known = [{"a": "x", "b": 0.25}, {"a": "y", "b": 6.5}]
    study = supermax.open_study(space, storage=None, sampler=PriorSampler(known, seed=0))
    for wanted in known:
        trial = study.ask()
        assert space.sample(trial) == wanted
        study.tell(trial, 0.0)


def test_a_run_uses_and_continues_it(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/s.db"

    def run(n_trials: int) -> list[FrozenTrial]:
        study = optuna.create_study(
            storage=storage,
            study_name="s",
            sampler=PriorSampler(KNOWN, mixture=True, seed=0),
            load_if_exists=True,
        )
        supermax.optimize(study, _objective, n_trials=n_trials, workers=2, progress=False)
        return study.trials

    run(1)
    trials = run(16)
    choices = [choice_of(t) for t in trials]
    assert None not in choices
    # In the order in which trials suggest: with two workers, not always that of their numbers.
    given = [c is not None and c.source == "configuration" for c in choices]
    assert [t.params["x"] for t, is_given in zip(trials, given, strict=True) if is_given] == [
        0.25,
        -0.5,
    ]
    assert given[0]
