"""Portfolios: the greedy choice, and that a task never sees itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.toy import toy_table

import portfolio  # isort: skip
from measure import half_of  # isort: skip
from tables import Params, Table  # isort: skip


def test_the_choice_is_greedy() -> None:
    regrets = np.array([[0.9, 0.2, 0.5], [0.3, 0.9, 0.5], [0.3, 0.9, 0.5]])
    assert portfolio.greedy(regrets, 1) == [0]
    assert portfolio.greedy(regrets, 2) == [0, 1]
    assert portfolio.greedy(regrets, 3) == [0, 1]  # nothing is left to gain
    assert portfolio.greedy(regrets, 2, first=[2]) == [2, 0]


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=5, max_size=5), min_size=1, max_size=6))
def test_each_configuration_lowers_the_regret_of_a_task(rows: list[list[float]]) -> None:
    regrets = np.array(rows)
    chosen = portfolio.greedy(regrets, 5)
    assert len(set(chosen)) == len(chosen)
    lowest = np.minimum.accumulate(regrets[:, chosen], axis=1)
    assert (np.diff(lowest, axis=1) < 0).any(axis=0).all()
    assert regrets[:, chosen[:1]].shape[1] == 1


def test_the_portfolio_of_a_task_does_not_depend_on_it() -> None:
    tables = [_toy(i, center=i / 4) for i in range(4)]
    before = portfolio.build(tables, 3).portfolios
    after, regrets, *_ = portfolio.build([*tables[:3], _toy(3, center=-1.0)], 3)
    assert before["toy-3"] == after["toy-3"]
    assert before["toy-0"] != after["toy-0"]
    assert set(after) == {"toy-0", "toy-1", "toy-2", "toy-3", "toy"}
    assert (np.diff(regrets, axis=1) <= 0).all()


def test_tables_of_the_same_data_are_left_out_together() -> None:
    points = [{"x": x / 10} for x in range(-10, 11)]
    centers = {"a-whole": 0.5, "a-half": 0.6, "b-whole": -0.9, "b-half": -0.8}
    tables = [
        replace(_toy(0, center), name=f"tweeteval-{name}", recorded=points)
        for name, center in centers.items()
    ]
    built = portfolio.build(tables, 3)
    chosen = [c["x"] for c in built.portfolios["tweeteval-a-half"]]
    assert chosen == [0.5, -0.9, -0.8]  # the defaults, then those that are good on b
    assert [c["x"] for c in built.portfolios["tweeteval-b-whole"]] == [0.5, 0.6]
    assert len(built.portfolios["tweeteval"]) == 3
    assert np.allclose(built.left_out[:, 0], built.defaults)
    assert np.allclose(built.random[:, 0], built.defaults)
    assert (np.diff(built.random, axis=1) <= 0).all()


def _toy(number: int, center: float) -> Table:
    def curve(params: Params) -> np.ndarray:
        x = params["x"]
        assert isinstance(x, float)
        return abs(x - center) + 1 / np.arange(1, 10)

    return replace(toy_table(), name=f"toy-{number}", curve=curve)


def test_stored_portfolios_are_of_the_tuning_half() -> None:
    stored = portfolio._stored()
    assert len(stored["left out"]) == 28
    assert all(half_of(task) == "tuning" for task in stored["left out"])
    assert all(1 <= len(found) <= portfolio.SIZE for found in stored["left out"].values())
    table = replace(toy_table(), name="lcbench-of-the-reporting-half")
    assert portfolio.portfolio_of(table) == stored["family"]["lcbench"]
    assert portfolio.portfolio_of(toy_table()) == [toy_table().defaults]
