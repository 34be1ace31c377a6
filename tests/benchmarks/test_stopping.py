"""Searches on recorded curves that end by themselves."""

from __future__ import annotations

from tests.benchmarks.toy import toy_table  # sets the path

import stopping  # isort: skip


def test_search_of_a_table_and_its_end() -> None:
    values = stopping.values_of(toy_table(), 55, 0)
    assert len(values) == 55
    assert all(value <= 0 for value in values)  # losses, with the sign changed
    assert stopping.end_of([0.5] * 60, 0.01) == 50
    assert stopping.end_of([0.01 * i for i in range(60)], 0.01) == 60


def test_searches_that_lost_more_than_the_noise_are_counted() -> None:
    late = [0.5] * 80 + [0.9] * 20
    rows = list(stopping.lines({"toy": [late, [0.5] * 100]}))
    assert len(rows) == 1 + len(stopping.NOISES)
    assert rows[1].split() == ["toy", "0.02", "2", "50", "0", "0.2000", "0.4000", "1"]
