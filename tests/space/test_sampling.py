"""Feasible samples only: with any sampler, in any space, however little of it is feasible."""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from collections import Counter
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

import supermax
from supermax import Space, UserError
from supermax._util.attributes import DRAWN
from supermax.space import enqueue, flatten, sampler_for, sampling
from supermax.space.feasible import TooLarge
from supermax.space.sampling import _SAMPLERS
from tests.few import a_few, quick_are
from tests.space.strategies import feasible_spaces

# Known-harmless words of Optuna about its own samplers.
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

MIXED = Space(
    parameters={
        "optim.name": {"choices": ["adamw", "lion", "adafactor"]},
        "optim.lr": [
            {
                "when": "optim.name == 'lion'",
                "type": "float",
                "low": 1e-6,
                "high": 1e-4,
                "log": True,
            },
            {"type": "float", "low": 1e-5, "high": 1e-2, "log": True},
        ],
        "optim.beta": {
            "when": "optim.name != 'adafactor'",
            "type": "float",
            "low": 0.8,
            "high": 0.99,
        },
        "batch": [
            {"when": "size == 'large'", "choices": [8, 12, 16]},
            {"choices": [8, 12, 16, 24, 32, 48, 64]},
        ],
        "size": {"choices": ["base", "large"]},
        "length": {"type": "int", "low": 128, "high": 512, "step": 32},
    },
    constraints=[
        {"name": "memory", "require": "batch * length <= 4096", "reason": "it must fit"},
        {"name": "lion", "require": "optim.name != 'lion' or batch >= 16", "reason": "noise"},
    ],
)


def check(space: Space, trial: optuna.trial.FrozenTrial, config: dict[str, Any]) -> None:
    assert space.mistakes(flatten(config)) == []
    assert set(trial.params) <= set(space.distributions)


def run(space: Space, sampler: Any, n: int, seed: int = 0) -> tuple[optuna.Study, list[Any]]:
    study = optuna.create_study(sampler=sampler_for(space, sampler, seed=seed))
    configs = []

    def objective(trial: optuna.Trial) -> float:
        configs.append(space.sample(trial))
        values = [v for v in flatten(configs[-1]).values() if isinstance(v, (int, float))]
        return float(sum(values))

    study.optimize(objective, n_trials=n)
    return study, configs


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(feasible_spaces(), st.sampled_from(["tpe", "random"]), st.integers(0, 99))
def test_samples_are_valid_in_the_space(space: Space, sampler: str, seed: int) -> None:
    study, configs = run(space, sampler, 14, seed)
    for trial, config in zip(study.trials, configs, strict=True):
        check(space, trial, config)


@pytest.mark.parametrize("name", quick_are(set(_SAMPLERS) - {"gp"}, _SAMPLERS))
def test_every_sampler_of_optuna_stays_feasible(name: str) -> None:
    n = 20 if name == "gp" else 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study, configs = run(MIXED, name, n)
    assert len(study.trials) == n
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)
    for trial, config in zip(study.trials, configs, strict=True):
        check(MIXED, trial, config)


def test_gp_draws_conditional_parameters_by_tpe(caplog: pytest.LogCaptureFixture) -> None:
    """GPSampler alone draws them uniformly: 0.29 from the best value on average."""
    unit = {"type": "float", "low": 0, "high": 1}
    space = Space(
        parameters={"kind": {"choices": ["a", "b"]}, "x": {"when": "kind == 'a'", **unit}}
    )
    study = optuna.create_study(sampler=sampler_for(space, "gp", seed=1))
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    study.optimize(lambda t: abs(space.sample(t).get("x", 2.0) - 0.7), n_trials=28)
    logger.removeHandler(caplog.handler)
    late = [trial.value or 0.0 for trial in study.trials[20:] if "x" in trial.params]
    assert len(late) > 5
    assert sum(late) / len(late) < 0.15
    assert "sampled independently" not in caplog.text


def test_several_objectives_stay_feasible() -> None:
    for sampler in ("tpe", "nsgaii"):
        study = optuna.create_study(
            directions=["minimize", "maximize"], sampler=sampler_for(MIXED, sampler, seed=1)
        )

        def objective(trial: optuna.Trial) -> tuple[float, float]:
            config = MIXED.sample(trial)
            check(MIXED, trial, config)  # type: ignore[arg-type]
            return float(config["batch"]), float(config["length"])

        study.optimize(objective, n_trials=30)
        assert len(study.trials) == 30


def test_random_draws_are_the_prior_given_feasibility() -> None:
    """Compared with rejection sampling by Optuna's RandomSampler, parameter by parameter."""
    space = Space(
        parameters={
            "x": {"type": "float", "low": 0, "high": 1},
            "n": {"type": "int", "low": 1, "high": 8, "log": True},
            "kind": {"choices": ["a", "b", "c"]},
            "only_b": {
                "when": "kind == 'b'",
                "type": "float",
                "low": 1e-4,
                "high": 1,
                "log": True,
            },
        },
        constraints=[
            {"name": "one", "require": "x * n <= 2", "reason": "-"},
            {"name": "two", "require": "kind != 'a' or x > 0.3", "reason": "-"},
            {"name": "three", "require": "only_b > 0.01 or n < 3", "reason": "-"},
        ],
    )
    n = 2000
    _, ours = run(space, "random", n, seed=7)
    plain = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=11))
    reference: list[dict[str, Any]] = []
    while len(reference) < n:
        trial = plain.ask()
        values = space.walk(
            lambda name, _, branch: trial._suggest(name, branch.distribution)  # noqa: B023
        )
        if not space.broken(values):
            reference.append(values)
        plain.tell(trial, state=optuna.trial.TrialState.PRUNED)
    for name in ("x", "only_b"):
        one = [c[name] for c in ours if name in c]
        other = [c[name] for c in reference if name in c]
        assert stats.ks_2samp(one, other).pvalue > 1e-3, name
    for name in ("n", "kind"):
        one_counts, other_counts = (Counter(c[name] for c in some) for some in (ours, reference))
        keys = sorted({*one_counts, *other_counts})
        table = [[one_counts[key] for key in keys], [other_counts[key] for key in keys]]
        assert stats.chi2_contingency(table).pvalue > 1e-3, name


def test_a_biased_sampler_would_be_caught() -> None:
    """The test above has power: repaired samples do not have the conditional prior."""
    rng = stats.uniform(0, 1).rvs
    wanted = [x for x in rng(size=6000, random_state=1) if x > 0.7][:1500]
    biased = [x if x > 0.7 else 0.7 + 0.3 * x**2 for x in rng(size=1500, random_state=2)]
    assert stats.ks_2samp(wanted, biased).pvalue < 1e-3


def test_tpe_keeps_its_own_samples_and_learns() -> None:
    space = Space(
        parameters={
            "x": {"type": "float", "low": 0, "high": 1},
            "y": {"type": "float", "low": 0, "high": 1},
        },
        constraints=[{"name": "wall", "require": "x + y <= 0.8", "reason": "-"}],
    )
    sampler = sampler_for(space, "tpe", seed=3)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        c = space.sample(trial)
        return (c["x"] - 0.6) ** 2 + (c["y"] - 0.6) ** 2

    study.optimize(objective, n_trials=80)
    sources = [t.system_attrs.get(DRAWN, {"from": "own"})["from"] for t in study.trials]
    assert set(sources) == {"own"}
    assert sampler.draws.total() == 80
    # The best possible is (0.4, 0.4): 0.08. The prior alone gets there far less often.
    late = [t.value for t in study.trials[40:]]
    early = [t.value for t in study.trials[:10]]
    assert sorted(late)[20] < sorted(early)[4]
    assert study.best_value < 0.083


def test_parameters_of_one_condition_are_sampled_jointly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parameters of a branch that interact are optimized together."""
    space = Space(
        parameters={
            "branch": {"choices": ["p", "q"]},
            "u": {"when": "branch == 'p'", "type": "float", "low": 0, "high": 1},
            "v": {"when": "branch == 'p'", "type": "float", "low": 0, "high": 1},
            "w": {"when": "branch == 'q'", "type": "float", "low": 0, "high": 1},
        }
    )
    sampler = sampler_for(space, "tpe", seed=0)
    asked: list[set[str]] = []
    original = optuna.samplers.TPESampler._sample

    def noted(self: Any, study: Any, trial: Any, search_space: dict[str, Any]) -> Any:
        asked.append(set(search_space))
        return original(self, study, trial, search_space)

    monkeypatch.setattr(optuna.samplers.TPESampler, "_sample", noted)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        c = space.sample(trial)
        return (c["u"] - c["v"]) ** 2 if c["branch"] == "p" else 1 + c["w"]

    study.optimize(objective, n_trials=40)
    assert {"u", "v"} in asked
    assert {"u"} not in asked
    assert sum(t.params["branch"] == "p" for t in study.trials[20:]) >= 15


@pytest.mark.parametrize("name", a_few(["tpe", "random", "cmaes"]))
def test_a_single_feasible_point_is_found_and_samples_are_counted(name: str) -> None:
    """One point in a million; every sampler falls back to search."""
    space = Space(
        parameters={f"p{i}": {"type": "int", "low": 0, "high": 9} for i in range(6)},
        constraints=[
            {
                "name": "needle",
                "reason": "-",
                "require": "p0 == 7 and p1 == 7 and p2 == 7 and p3 == 7 and p4 == 7 and p5 == 7",
            },
        ],
    )
    study, configs = run(space, name, 2)
    assert configs == [{f"p{i}": 7 for i in range(6)}] * 2
    note = study.trials[0].system_attrs[DRAWN]
    assert note["from"] == "search"
    assert note["draws"] > 1000


def test_a_tiny_feasible_region_of_real_numbers_falls_back_to_the_witness() -> None:
    space = Space(
        parameters={
            "x": {"type": "float", "low": 0, "high": 1, "default": 0.123456789},
            "y": {"type": "float", "low": 0, "high": 1, "default": 0.5},
        },
        constraints=[
            {"name": "thin", "require": "x > 0.1234567 and x < 0.1234568", "reason": "-"}
        ],
    )
    _, configs = run(space, "tpe", 5)
    assert {c["x"] for c in configs} == {0.123456789}
    assert len({c["y"] for c in configs}) == 5  # what constraints do not touch is still drawn


def test_enqueued_values_are_kept_and_completed_feasibly() -> None:
    study = optuna.create_study(sampler=sampler_for(MIXED, "tpe", seed=0))
    for _ in range(10):
        study.enqueue_trial({"size": "large", "length": 512})
    configs: list[Any] = []
    study.optimize(lambda trial: configs.append(MIXED.sample(trial)) or 0.0, n_trials=10)
    for trial, config in zip(study.trials, configs, strict=True):
        check(MIXED, trial, config)
        assert (config["size"], config["length"], config["batch"]) == ("large", 512, 8)


def test_an_infeasible_point_cannot_be_enqueued() -> None:
    study = optuna.create_study(sampler=sampler_for(MIXED, seed=0))
    with pytest.raises(UserError, match=r"(?s)cannot be enqueued.*memory"):
        enqueue(study, MIXED, {"size": "base", "batch": 64, "length": 512})
    with pytest.raises(UserError, match="did you mean 'length'"):
        enqueue(study, MIXED, {"lenght": 512})
    assert not study.trials


def test_infeasible_values_enqueued_with_optuna_are_named() -> None:
    study = optuna.create_study(sampler=sampler_for(MIXED, seed=0))
    study.enqueue_trial({"size": "base", "batch": 64, "length": 512, "optim.name": "adamw"})
    with pytest.raises(UserError, match=r"(?s)were enqueued.*memory"):
        study.optimize(lambda trial: MIXED.sample(trial) and 0.0, n_trials=1)


def test_a_sampler_that_knows_no_space_is_named_when_it_breaks_a_constraint() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    with pytest.raises(UserError, match="does not know the space"):
        study.optimize(lambda trial: MIXED.sample(trial) and 0.0, n_trials=50)


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ("tpee", "did you mean 'tpe'"),
        (3, "must be an Optuna sampler"),
        (lambda: optuna.samplers.GridSampler({"x": [1]}), "GridSampler"),
        (lambda: optuna.samplers.BruteForceSampler(), "BruteForceSampler"),
        (
            lambda: optuna.samplers.PartialFixedSampler(
                {"batch": 8}, optuna.samplers.RandomSampler()
            ),
            "bypasses the space",
        ),
    ],
)
def test_a_sampler_that_cannot_sample_a_space_is_refused(sampler: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        sampler_for(MIXED, sampler() if callable(sampler) else sampler)


def test_sampling_in_cells_of_the_engine(tmp_path: Any) -> None:
    """Conditional ranges, constraints and enqueued values through supermax.optimize."""
    study = supermax.open_study(
        MIXED, storage=f"sqlite:///{tmp_path}/s.db", name="mixed", seed=0, quiet=True
    )
    study.enqueue_trial({"size": "large", "length": 512})

    def objective(trial: Any) -> float:
        config = MIXED.sample(trial)
        return float(config["batch"] * config["length"])

    supermax.optimize(study, objective, n_trials=10, workers=2, progress=False)
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 10
    for trial in study.trials:
        values = {
            supermax._util.attributes.plain_name(n, trial.distributions[n]): v
            for n, v in trial.params.items()
        }
        assert MIXED.mistakes(values) == []
        assert trial.value == values["batch"] * values["length"]
    assert study.trials[0].value == 8 * 512


def test_a_second_attempt_has_the_first_ones_configuration(tmp_path: Any) -> None:
    """Killed before anything was suggested, in the middle, and at the end."""
    study = supermax.open_study(MIXED, storage=f"sqlite:///{tmp_path}/s.db", seed=5, quiet=True)

    def objective(trial: Any) -> float:
        noted = trial.checkpoint_dir / "config.json"
        if trial.attempt == 1 and trial.number % 3 == 0:
            trial.suggest_categorical("size", ["base", "large"])
            noted.write_text(json.dumps(trial.relative_params))
            os.kill(os.getpid(), signal.SIGKILL)
        config = MIXED.sample(trial)
        if trial.attempt == 1 and trial.number % 3 == 1:
            noted.write_text(json.dumps(config))
            os.kill(os.getpid(), signal.SIGKILL)
        if trial.number % 3 == 1:
            assert json.loads(noted.read_text()) == config
        if trial.number % 3 == 0:
            drawn = json.loads(noted.read_text())
            assert flatten(config) == {n: drawn[n] for n in flatten(config)}
        return float(config["batch"])

    summary = supermax.optimize(study, objective, n_trials=9, workers=2, progress=False)
    assert summary.trials["COMPLETE"] == 9, [t.user_attrs for t in study.trials]


def test_the_sampler_can_be_read_in_a_cell(tmp_path: Any) -> None:
    study = supermax.open_study(MIXED, storage=f"sqlite:///{tmp_path}/s.db", quiet=True)

    def objective(trial: Any) -> float:
        return float(trial.study.sampler.space == MIXED)

    supermax.optimize(study, objective, n_trials=1, progress=False)
    assert study.best_value == 1.0


def test_threads_of_plain_optuna() -> None:
    study = optuna.create_study(sampler=sampler_for(MIXED, "tpe", seed=0))
    study.optimize(lambda trial: float(MIXED.sample(trial)["batch"]), n_trials=60, n_jobs=4)
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 60


@pytest.mark.slow
def test_a_search_that_is_too_large_is_tried_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One point in a hundred thousand, in a space too large to be searched for every sample."""
    names = [f"p{i}" for i in range(8)]
    space = Space(
        parameters={name: {"type": "int", "low": 0, "high": 9} for name in names},
        constraints=[{"name": "sum", "require": f"{' + '.join(names)} == 5", "reason": "-"}],
    )
    limits: list[int] = []

    def noted(*args: Any, limit: int, **options: Any) -> Any:
        limits.append(limit)
        raise TooLarge

    monkeypatch.setattr(sampling, "search", noted)
    _, configs = run(space, "tpe", 15)
    assert all(sum(config.values()) == 5 for config in configs)
    assert len(limits) == 1
    assert limits[0] <= 20_000  # steps of some ten microseconds


def test_enqueued_values_are_completed_by_search() -> None:
    space = Space(
        parameters={
            "x": {"type": "int", "low": 0, "high": 20},
            "y": {"type": "int", "low": 0, "high": 20_000},
        },
        constraints=[{"name": "line", "require": "y == x * 1000", "reason": "-"}],
    )
    study = optuna.create_study(sampler=sampler_for(space, "random", seed=0))
    enqueue(study, space, {"x": 7})
    configs: list[Any] = []
    study.optimize(lambda trial: configs.append(space.sample(trial)) or 0.0, n_trials=1)
    assert configs == [{"x": 7, "y": 7000}]


def test_ranges_with_and_without_steps_have_different_stored_names() -> None:
    unit = {"type": "float", "low": 0, "high": 10}
    space = Space(
        parameters={
            "k": {"choices": [1, 2, 3]},
            "x": [
                {"when": "k == 1", "choices": ["a"]},
                {"when": "k == 2", **unit},
                {**unit, "step": 1.0},
            ],
        }
    )
    assert len(set(space.stored_names.values())) == 4


def doubled(config: dict[str, Any]) -> bool:
    return bool(config["b"] == 2 * config["a"])


def test_a_function_gets_the_parameters_of_over() -> None:
    ints = {"type": "int", "low": 0, "high": 40}
    rule = {"name": "d", "reason": "-", "python": doubled, "over": ["a", "b"]}
    space = Space(parameters={"a": ints, "b": ints, "c": ints}, constraints=[rule])
    _, configs = run(space, "random", 5)
    assert all(config["b"] == 2 * config["a"] for config in configs)
    with pytest.raises(UserError, match="failed with KeyError"):
        sampler_for(Space(parameters={"a": ints}, constraints=[{**rule, "over": ["a"]}]))


# Configurations that a completed trial has had.

TWELVE = Space(
    parameters={
        "a": {"choices": ["x", "y", "z"]},
        "b": {"when": "a != 'z'", "type": "int", "low": 1, "high": 5},
        "c": {"when": "a == 'z'", "choices": [True, False]},
    }
)


def different(name: str, redraws: int, trials: int = 12) -> int:
    """Return the number of different configurations among complete trials."""
    sampler = sampler_for(TWELVE, name, seed=4)
    sampler.redraws = redraws
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: len(flatten(TWELVE.sample(trial))) + trial.number % 3, trials)
    return len({json.dumps(trial.params, sort_keys=True) for trial in study.trials})


@pytest.mark.parametrize("name", quick_are(["random", "tpe"], ["random", "tpe", "nsgaii", "qmc"]))
def test_a_known_configuration_is_drawn_again(name: str) -> None:
    assert different(name, redraws=10) >= 10 > different(name, redraws=0)


def test_enqueued_and_failed_configurations_are_not_drawn_again() -> None:
    sampler = sampler_for(TWELVE, "random", seed=0)
    sampler.redraws = 10
    study = optuna.create_study(sampler=sampler)
    for fails in (False, False, True):
        study.enqueue_trial({"a": "z", "c": True})
        trial = study.ask()
        assert TWELVE.sample(trial) == {"a": "z", "c": True}
        study.tell(trial, None if fails else 1.0, optuna.trial.TrialState.FAIL if fails else None)
    only = Space(parameters={"a": {"choices": ["x"]}})
    sampler = sampler_for(only, "tpe", seed=0)
    sampler.redraws = 10
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: float(only.sample(trial)["a"] == "x"), 3)  # there is no other
    assert len(study.trials) == 3
