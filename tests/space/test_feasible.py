"""Spaces without feasible points, and feasible points that are hard to find."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supermax import Space, UserError
from supermax.space import feasible
from supermax.space.feasible import relevant, search, witness


def space(parameters: dict[str, Any], *rules: str) -> Space:
    constraints = [
        {"name": f"rule {i}", "require": rule, "reason": f"reason {i}"}
        for i, rule in enumerate(rules, 1)
    ]
    return Space(parameters=parameters, constraints=constraints)


INTS = {name: {"type": "int", "low": 0, "high": 9} for name in "abcdef"}


def conflict(one: Space) -> str:
    with pytest.raises(UserError, match="no feasible point") as caught:
        witness(one)
    return str(caught.value)


def test_only_the_constraints_that_conflict_are_named() -> None:
    text = conflict(space(INTS, "a > 5", "b < 3", "c + d <= 10", "a < 4", "e != f"))
    assert "contradict each other" in text
    assert "all combinations were tried" in text
    assert "rule 1 (a > 5): reason 1" in text
    assert "rule 4 (a < 4): reason 4" in text
    assert not [rule for rule in ("rule 2", "rule 3", "rule 5") if rule in text]


def test_one_constraint_that_can_never_be_met() -> None:
    assert "one is never met" in conflict(space(INTS, "a < 10", "a + b > 18"))
    assert "rule 1 (1 > 2)" in conflict(space(INTS, "1 > 2"))


def test_a_conflict_among_real_numbers_is_found_by_sampling() -> None:
    floats = {n: {"type": "float", "low": 0, "high": 1} for n in "xyz"}
    text = conflict(space(floats, "x + y < 0.5", "x > 0.3", "y > 0.3", "z < 0.9"))
    assert "10,000 samples" in text
    assert "rule 4" not in text


def test_a_conflict_that_depends_on_a_condition() -> None:
    parameters = {
        "kind": {"choices": ["a", "b"]},
        "n": {"when": "kind == 'a'", "type": "int", "low": 0, "high": 3},
        "free": {"type": "float", "low": 0, "high": 1},
    }
    # Where n is not active, what is said of it does not apply.
    assert witness(space(parameters, "n > 3"))["kind"] == "b"
    text = conflict(space(parameters, "n > 3", "kind == 'a'"))
    assert "rule 1" in text
    assert "rule 2" in text
    assert relevant(space(parameters, "n > 3"), space(parameters, "n > 3").constraints) == {
        "n",
        "kind",
    }


def test_only_the_relevant_parameters_of_a_huge_space_are_searched() -> None:
    """10^20 combinations; a constraint on two parameters is decided at once, and exactly."""
    many = {f"p{i:02}": {"type": "int", "low": 0, "high": 9} for i in range(20)}
    assert "certain" in conflict(space(many, "p00 * p01 == 85"))
    assert witness(space(many, "p00 * p01 == 81"))["p00"] == 9


def test_a_search_that_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feasible, "LARGEST", 1000)
    with pytest.raises(feasible.TooLarge):
        search(space(INTS, "a + b + c + d + e + f > 53.5"))
    assert "10,000 samples" in conflict(space(INTS, "a + b + c + d + e + f > 54"))


RULES = ["a + b > {}", "a * c < {}", "a == {} or b == 3", "b - c >= {}", "a != {}", "c <= {}"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(RULES), st.integers(-3, 9)), max_size=4))
def test_the_search_is_exact(drawn: list[tuple[str, int]]) -> None:
    """Compared with brute force."""
    small = {name: {"type": "int", "low": 0, "high": 4} for name in "abc"}
    one = space(small, *(rule.format(number) for rule, number in drawn))
    points = [dict(zip("abc", p, strict=True)) for p in itertools.product(range(5), repeat=3)]
    exists = any(not one.broken(point) for point in points)
    found = search(one)
    assert (found is not None) == exists
    if exists:
        assert one.broken(witness(one)) == []
        return
    text = conflict(one)
    core = [c for c in one.constraints if f"{c.name} (" in text]
    assert not any(not one.broken(point, core) for point in points)
    for left_out in core:
        rest = [c for c in core if c is not left_out]
        assert any(not one.broken(point, rest) for point in points)


def test_a_subset_too_large_to_search_does_not_stop_the_report() -> None:
    """Without the contradiction, the remaining constraints are on real numbers."""
    parameters = {
        "n": {"type": "int", "low": 0, "high": 3},
        "x": {"type": "float", "low": 0, "high": 1},
    }
    text = conflict(space(parameters, "x * x < 2", "n > 2", "n < 1"))
    assert "rule 2" in text
    assert "rule 3" in text


def test_a_partial_configuration_is_not_rejected_too_early() -> None:
    parameters = {"x": {"choices": [0]}, "y": {"type": "int", "low": 0, "high": 100_000}}
    assert witness(space(parameters, "y == 77777 or 1 / x > 3"))["y"] == 77777


def test_a_range_with_too_many_steps_is_not_enumerated() -> None:
    fine = {"type": "float", "low": 0, "high": 1000, "step": 1e-6, "default": 500.0}
    assert witness(space({"x": fine}, "x == 500"))["x"] == 500.0
    with pytest.raises(feasible.TooLarge):
        search(space({"x": fine}, "x == 500"))


def test_a_thousand_parameters_in_one_search_are_too_many() -> None:
    many = {f"p{i}": {"type": "int", "low": 0, "high": 1} for i in range(1100)}
    one = Space(
        parameters=many,
        constraints=[
            {"name": f"c{i}", "require": f"p{i} == p{i + 1}", "reason": "-"} for i in range(1099)
        ],
    )
    with pytest.raises(feasible.TooLarge):
        search(one)
