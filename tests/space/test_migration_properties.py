"""Properties of every change of every space."""

from __future__ import annotations

import itertools
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage
from optuna.study import Study

from supermax import Space, UserError
from supermax.space import changes, open_version
from supermax.space.migration.carry import assumed_of
from tests.space.strategies import domains, feasible_spaces
from tests.space.versions import (
    by_root,
    by_root_of,
    filled,
)


@st.composite
def changed_spaces(draw_: st.DrawFn, count: int) -> list[Space]:
    """Return versions of one space: domains replaced, parameters left out."""
    first = draw_(feasible_spaces(default=True))
    versions = [first]
    for _ in range(count - 1):
        data = versions[-1].data()
        names = list(data["parameters"])
        name = draw_(st.sampled_from(names))
        if len(names) > 1 and draw_(st.booleans()):
            del data["parameters"][name]
        else:
            data["parameters"][name] = draw_(domains(default=True))
        data["constraints"] = []
        try:
            versions.append(Space(**data))
        except UserError:  # a condition speaks of what is gone, or can never hold
            assume(False)
    return versions


SEEDS = st.integers(0, 96)


def fresh_storage(space: Space, n: int, seed: int) -> tuple[Any, Study]:
    storage = InMemoryStorage()
    study = open_version(space, storage=storage, name="s").study
    filled(study, space, n, seed=seed)
    return storage, study


def makes_a_version(old: Space, new: Space) -> bool:
    """Return whether the change makes a new version: one of defaults alone, say, does not, and
    trials keep the defaults that they took."""
    return not all(change.minor for change in changes(old, new))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_spaces(2), SEEDS)
def test_every_valid_trial_is_kept_and_migration_is_idempotent(
    versions: list[Space], seed: int
) -> None:
    old, new = versions
    storage, study = fresh_storage(old, 8, seed)
    result = open_version(new, storage=storage, name="s")
    before = by_root_of(study)
    kept = by_root(result.study) if result.study.study_name != "s" else before
    for root, one in kept.items():
        assert new.mistakes(one["params"]) == []
        same = {k: v for k, v in one.items() if k != "params"}
        assert same == {k: v for k, v in before[root].items() if k != "params"}
        for name, value in one["params"].items():
            if name in before[root]["params"]:
                assert value == before[root]["params"][name]
    for root, one in before.items():
        if new.mistakes(one["params"]) == []:
            assert root in kept
    again = open_version(new, storage=storage, name="s")
    assert again.study.study_name == result.study.study_name
    assert again.carried == 0
    assert len(again.study.trials) == len(result.study.trials)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_spaces(3), SEEDS)
def test_migration_in_two_steps_equals_one(versions: list[Space], seed: int) -> None:
    one, two, three = versions
    assume(all(itertools.starmap(makes_a_version, ((one, two), (two, three), (one, three)))))
    storage, _ = fresh_storage(one, 8, seed)
    direct_storage, direct_study = InMemoryStorage(), None
    direct_study = open_version(one, storage=direct_storage, name="s").study
    for trial in optuna.load_study(study_name="s", storage=storage).trials:
        direct_study.add_trial(trial)
    through = open_version(two, storage=storage, name="s")
    assume(not through.left)  # nothing was lost on the way
    # A trial keeps the default that it took for a newer parameter, even if that changes later.
    taken = {name for trial in through.study.trials for name in assumed_of(trial)}
    assume(all(two.parameters[n] == three.parameters.get(n, two.parameters[n]) for n in taken))
    through = open_version(three, storage=storage, name="s")
    direct = open_version(three, storage=direct_storage, name="s")
    assert by_root(through.study) == by_root(direct.study)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_spaces(2))
def test_a_diff_is_empty_exactly_for_equal_spaces(versions: list[Space]) -> None:
    old, new = versions
    assert changes(old, old) == []
    assert bool(changes(old, new)) == (old != new)
    assert all(str(change) for change in changes(new, old))
