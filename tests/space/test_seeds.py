"""First trials of a search: defaults, and the best of another study."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from supermax import Space, UserError
from supermax._util.attributes import ORIGIN, plain_params
from supermax.space import enqueue_defaults, open_version, sampler_for, warm_start
from supermax.space.feasible import draw_from_prior
from supermax.space.seeds import best_configurations, difference
from tests.space.versions import (
    BASE,
    ENCODERS,
    changed,
    filled,
    opened,
)


def test_defaults_are_enqueued_once(storage: Any) -> None:
    space = changed(
        warmup={"type": "float", "low": 0.0, "high": 0.3, "default": 0.1},
    )
    study = opened(space, storage).study
    assert enqueue_defaults(study, space)
    assert not enqueue_defaults(study, space)
    study.optimize(lambda trial: float(bool(space.sample(trial))), n_trials=1)
    assert plain_params(study.trials[0]) == space.defaults()
    assert not enqueue_defaults(study, space)
    with pytest.raises(UserError, match="no default: batch, warmup"):
        enqueue_defaults(study, Space(**BASE))


def test_a_warm_start_enqueues_the_best_of_another_study(storage: Any) -> None:
    source = opened(Space(**BASE), storage).study
    filled(source, Space(**BASE), 40)
    space = changed(warmup=None, clip={"type": "float", "low": 0.1, "high": 5.0})
    study = open_version(space, storage=storage, name="other").study
    queued, left = warm_start(study, space, source, top=5)
    assert queued == 0  # clip is not known, and has no default
    assert left["clip is new and has no default"] > 0
    space = changed(warmup=None, encoder={"choices": ENCODERS[:3]})
    study = open_version(space, storage=storage, name="third").study
    queued, left = warm_start(study, space, source, top=5)
    assert queued == 5
    study.optimize(lambda trial: float(bool(space.sample(trial))), n_trials=5)
    fitting = [
        t
        for t in sorted(source.trials, key=lambda t: (t.value is None, t.value))
        if t.state is TrialState.COMPLETE and t.params["encoder"] in ENCODERS[:3]
    ]
    for ours, theirs in zip(study.trials, fitting, strict=False):
        wanted = {k: v for k, v in plain_params(theirs).items() if k != "warmup"}
        assert plain_params(ours) == wanted
        assert ours.user_attrs[ORIGIN] == {"study": "s", "number": theirs.number}
    again = warm_start(study, space, source, top=5)  # as if the program were started again
    assert (again[0], again[1]["it is there already"]) == (0, 5)
    assert warm_start(study, space, source, top=6)[0] == 1


def test_a_parameter_with_one_value_takes_it_whatever_the_earlier_trial_had(storage: Any) -> None:
    source = opened(Space(**BASE), storage).study
    filled(source, Space(**BASE), 40)
    space = changed(
        warmup={"type": "float", "low": 0.5, "high": 0.5}, encoder={"choices": ["bert"]}
    )
    chosen, left = best_configurations(source, space, 40)
    complete = source.get_trials(states=(TrialState.COMPLETE,))
    assert {values["warmup"] for values in chosen.values()} == {0.5}
    assert {values["encoder"] for values in chosen.values()} == {"bert"}
    assert len(chosen) == len(complete) - sum(left.values())
    for number, values in chosen.items():
        assert values["lr"] == source.trials[number].params["lr"]
        assert space.mistakes(values) == []


def test_distinct_configurations_are_far_apart(storage: Any) -> None:
    source = opened(Space(**BASE), storage).study
    filled(source, Space(**BASE), 60)
    space = changed(encoder={"choices": ["bert"]}, warmup=None)
    chosen, _ = best_configurations(source, space, 60, apart=0.3)
    everything, _ = best_configurations(source, space, 60)
    assert 1 < len(chosen) < len(everything)
    assert next(iter(chosen)) == next(iter(everything))
    for number, values in everything.items():
        better = [other for n, other in chosen.items() if list(everything).index(n) <
                  list(everything).index(number)]  # fmt: skip
        assert (number in chosen) == all(difference(space, values, o) > 0.3 for o in better)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"encoder": "bert", "lr": 1e-4}, {"encoder": "bert", "lr": 1e-4}, 0),
        ({"encoder": "bert", "lr": 1e-5}, {"encoder": "bert", "lr": 1e-4}, 0.5),
        ({"encoder": "bert", "warmup": 0.0}, {"encoder": "bert", "warmup": 0.03}, 0.1),
        ({"encoder": "bert"}, {"encoder": "xlmr"}, 1),
        ({"encoder": "bert", "lr": 1e-4}, {"encoder": "bert"}, 1),
    ],
)
def test_a_difference_is_a_share_of_the_range(
    one: dict[str, Any], other: dict[str, Any], expected: float
) -> None:
    assert difference(Space(**BASE), one, other) == pytest.approx(expected)
    assert difference(Space(**BASE), other, one) == pytest.approx(expected)


def test_a_study_without_any_parameter_of_the_space_has_nothing_for_it(storage: Any) -> None:
    source = optuna.create_study(storage=storage, study_name="other")
    source.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    space = changed(warmup={"type": "float", "low": 0.0, "high": 0.3, "default": 0.1})
    assert best_configurations(source, space, 5) == (
        {},
        {"it has no parameter of this space": 3},
    )


def test_prior_draws_are_valid() -> None:
    import numpy as np

    rng = np.random.RandomState(0)
    for _ in range(200):
        values = draw_from_prior(Space(**BASE), rng)
        assert [m for m in Space(**BASE).mistakes(values) if "breaks" not in m] == []


def test_the_front_of_several_objectives_comes_before_other_trials(storage: Any) -> None:
    space = Space(**BASE)
    source = opened(space, storage, directions=["maximize", "minimize"]).study
    draws = optuna.create_study(
        directions=source.directions, sampler=sampler_for(space, "random", seed=0)
    )
    for values in ([1.0, 1.0], [3.0, 9.0], [2.0, 2.0], [9.0, 0.0], [8.0, 1.0]):
        trial = draws.ask()
        space.sample(trial)
        draws.tell(trial, values)
    source.add_trials(draws.trials)
    assert [trial.number for trial in source.best_trials] == [3]
    assert list(best_configurations(source, space, 3)[0]) == [3, 4, 1]


def test_trials_that_violate_a_constraint_begin_no_search(storage: Any) -> None:
    source = opened(Space(**BASE), storage).study
    filled(source, Space(**BASE), 10)
    best = source.best_trial
    violating = optuna.trial.create_trial(
        params=best.params, distributions=best.distributions, value=-1e9, constraints={"c": 1.0}
    )
    source.add_trial(violating)
    assert violating.constraints
    assert next(iter(best_configurations(source, Space(**BASE), 3)[0])) == best.number
