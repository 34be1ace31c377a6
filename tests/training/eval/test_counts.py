"""Predictions counted against the truth."""

from __future__ import annotations

import math

import pytest

from supermax.training.data.examples import Example
from supermax.training.eval.counts import MOST_CLASSES, counts_of, span_outcome
from supermax.training.eval.evaluate import Evaluation


def test_a_confusion_matrix_has_true_classes_as_rows() -> None:
    examples = [Example(str(i), "g", "t", label=label) for i, label in enumerate((0, 0, 1, 2))]
    given = {"0": [0.9, 0.1, 0.0], "1": [0.2, 0.7, 0.1], "2": [0.0, 1.0, 0.0], "3": [1, 0, 0]}
    found = counts_of(examples, Evaluation({}, given, {}))
    assert found == {"confusion": [[1, 1, 0], [0, 1, 0], [1, 0, 0]]}


def test_nothing_is_counted_of_a_model_that_diverged_or_has_many_classes() -> None:
    example = Example("0", "g", "t", label=0)
    assert counts_of([example], Evaluation({}, {"0": [math.nan, math.nan]}, {})) == {}
    many = [1.0] + [0.0] * MOST_CLASSES
    assert counts_of([example], Evaluation({}, {"0": many}, {})) == {}
    sought = Example("0", "g", "text", spans=())
    assert counts_of([sought], Evaluation({"token_f1": math.nan}, {}, {"0": []})) == {}


@pytest.mark.parametrize(
    ("given", "true", "expected"),
    [
        ([(0, 4)], [(0, 4), (6, 9)], "exact"),
        ([(0, 3)], [(2, 4)], "partial"),
        ([(0, 2)], [(2, 4)], "wrong"),
        ([], [(2, 4)], "missed"),
        ([(0, 2)], [], "invented"),
        ([], [], "rejected"),
    ],
)
def test_outcomes_of_span_examples(
    given: list[tuple[int, int]], true: list[tuple[int, int]], expected: str
) -> None:
    assert span_outcome(given, true) == expected
    example = Example("0", "g", "some text", spans=tuple(true))
    assert counts_of([example], Evaluation({}, {}, {"0": given})) == {"spans": {expected: 1}}
