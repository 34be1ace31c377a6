"""Disk space of a run: an upper bound of what can be there at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.memory.disk import Demand, Footprint, allowance, footprint
from supermax.memory.estimate import need
from supermax.memory.facts import Spec
from supermax.memory.planner import splits
from tests.memory.specs import BERT_LARGE, GIB, specs

LARGE = footprint(Spec((BERT_LARGE,), effective_batch=16, length=256))
trials = st.lists(
    st.builds(Footprint, st.integers(1, 40), st.integers(1, 40), st.integers(1, 9)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(specs())
def test_no_plan_needs_less_memory_than_its_footprint(spec: Spec) -> None:
    assert all(footprint(spec).memory <= need(spec, split).total for split in splits(spec))


def most(trials: list[Footprint], workers: int, memory: int) -> int:
    """Return the bytes of states in the worst mix, by brute force."""
    if not workers or not trials:
        return 0
    first, *others = trials
    found = most(others, workers, memory)
    if first.memory <= memory:
        found = max(found, first.states + most(trials, workers - 1, memory - first.memory))
    return found


@given(trials, st.integers(1, 6), st.integers(1, 120))
def test_no_mix_of_trials_exceeds_the_bound(
    trials: list[Footprint], workers: int, memory: int
) -> None:
    demand = Demand(trials, workers, memory, top=1)
    assert most(trials, workers, memory) <= demand.states
    assert demand.states <= replace(demand, memory=None).states
    if len(trials) == 1:
        assert demand.states <= memory / trials[0].memory * trials[0].states + 1


@given(
    trials,
    st.integers(1, 8),
    st.none() | st.integers(1, 120),
    st.integers(1, 5),
    st.none() | st.integers(1, 30),
    st.integers(0, 400),
    st.integers(0, 4),
)
def test_the_allowance_fits_the_disk(
    trials: list[Footprint],
    workers: int,
    memory: int | None,
    top: int,
    keep: int | None,
    free: int,
    paused: int,
) -> None:
    demand = Demand(trials, workers, memory, top, keep, paused)
    found = allowance(demand, free)
    if found is None:
        one = replace(demand, workers=1)
        assert free < one.total
        assert free < one.states + one.largest + one.pauses
        return
    assert found.paused >= demand.pauses
    rest = replace(demand, workers=found.workers, keep=found.keep, paused=0)
    assert rest.total + found.paused <= free
    assert 1 <= found.workers <= workers
    assert replace(demand, workers=found.workers, keep=found.keep).total <= found.total <= free
    if demand.total <= free:
        assert (found.workers, found.keep) == (workers, keep)
    if found.workers > 1:  # workers go before kept weights
        assert found.keep == keep


@pytest.mark.parametrize(("top", "keep"), [(5, None), (1, 10 * GIB)])
def test_a_small_gpu_never_holds_eight_large_trials(top: int, keep: int | None) -> None:
    demand = Demand([LARGE], 8, 24 * GIB, top, keep)
    assert 3 * LARGE.states < demand.states < 5 * LARGE.states
    found = allowance(demand, 68_000_000_000)
    assert found is not None
    assert found.workers == 8
    wide = allowance(replace(demand, memory=139 * GIB), 68_000_000_000)
    assert wide is not None
    assert 1 < wide.workers < 8


def test_states_on_another_disk_take_no_space_here() -> None:
    demand = Demand([LARGE], 8, None, top=2)
    apart = replace(demand, apart=True)
    assert apart.total == demand.weights < demand.total
    found = allowance(apart, demand.weights)
    assert found is not None
    assert (found.workers, found.keep) == (8, None)
    assert allowance(demand, demand.weights) is None
