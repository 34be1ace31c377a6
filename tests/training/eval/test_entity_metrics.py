"""Metrics of entities beside those of seqeval 1.2.2, in its default mode.

The figures of the table were computed with it. Where it is installed, random tags are
compared too.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.errors import UserError
from supermax.training.data.entities import Entity, chunks, parsed_tag
from supermax.training.eval.entity_metrics import (
    entity_counts,
    entity_metrics,
    metrics_of_counts,
)
from supermax.training.eval.metrics import check_metric

TYPES = ["LOC", "ORG", "PER"]


def entities(tags: list[str]) -> list[Entity]:
    """Return the entities with words as characters."""
    parsed = [tag for tag in map(parsed_tag, tags) if tag is not None]
    return [Entity(first, end, TYPES.index(kind)) for first, end, kind in chunks(parsed)]


def ours(true: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    return entity_metrics([*map(entities, true)], [*map(entities, predicted)], len(TYPES))


CASES: list[tuple[str, str, tuple[float, ...]]] = [
    ("O B-PER I-PER O B-LOC", "O B-PER I-PER O B-LOC", (1.0, 1.0, 1.0, 1.0, 0.0, 1.0)),
    ("O B-PER I-PER O B-LOC", "O B-PER O O B-LOC", (0.5, 0.5, 0.5, 1.0, 0.0, 0.0)),
    (
        "O B-PER I-PER O B-LOC",
        "O B-LOC I-LOC O B-LOC",
        (0.5, 0.5, 0.5, 0.6666666666666666, 0.0, 0.0),
    ),
    ("B-PER I-PER B-PER O", "B-PER I-PER I-PER O", (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    ("O I-PER I-PER O I-LOC", "O B-PER I-PER O B-LOC", (1.0, 1.0, 1.0, 1.0, 0.0, 1.0)),
    (
        "B-PER I-ORG O|I-LOC B-LOC I-LOC",
        "B-PER B-ORG O|B-LOC I-LOC I-LOC",
        (0.6666666666666666, 0.5, 0.5714285714285715, 0.0, 1.0, 1.0),
    ),
    ("B-PER E-PER S-LOC O", "B-PER I-PER B-LOC O", (1.0, 1.0, 1.0, 1.0, 0.0, 1.0)),
    (
        "B-ORG I-ORG|I-ORG O",
        "B-ORG I-ORG|O O",
        (1.0, 0.5, 0.6666666666666666, 0.0, 0.6666666666666666, 0.0),
    ),
    ("O O O", "O B-PER O", (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    ("O B-PER O", "O O O", (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    ("O O", "O O", (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    (
        "B-LOC|B-LOC|B-ORG I-ORG I-ORG|B-PER",
        "B-LOC|B-PER|B-ORG I-ORG O|B-PER",
        (0.5, 0.5, 0.5, 0.6666666666666666, 0.0, 0.6666666666666666),
    ),
]


@pytest.mark.parametrize(("true", "predicted", "expected"), CASES)
def test_metrics_have_the_figures_of_seqeval(
    true: str, predicted: str, expected: tuple[float, ...]
) -> None:
    found = ours(*([line.split() for line in text.split("|")] for text in (true, predicted)))
    names = ["entity_precision", "entity_recall", "entity_f1", "f1_0", "f1_1", "f1_2"]
    assert [found[name] for name in names] == pytest.approx(expected, abs=1e-12)


prefixes = st.sampled_from(["B", "I", "E", "S"])
tags = st.one_of(st.just("O"), st.tuples(prefixes, st.sampled_from(TYPES)).map("-".join))
pairs = st.lists(st.lists(st.tuples(tags, tags), min_size=1, max_size=9), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(pairs)
def test_metrics_of_random_tags_are_those_of_seqeval(rows: list[list[tuple[str, str]]]) -> None:
    seqeval: Any = pytest.importorskip("seqeval.metrics")
    true = [[a for a, _ in row] for row in rows]
    predicted = [[b for _, b in row] for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ratios with the denominator 0
        theirs = [
            getattr(seqeval, f"{name}_score")(true, predicted)
            for name in ("precision", "recall", "f1")
        ]
        report = seqeval.classification_report(true, predicted, output_dict=True)
    found = ours(true, predicted)
    names = ("entity_precision", "entity_recall", "entity_f1")
    assert [found[name] for name in names] == pytest.approx(theirs, abs=1e-12)
    for i, name in enumerate(TYPES):
        expected = report.get(name, {"f1-score": 0.0})["f1-score"]
        assert found[f"f1_{i}"] == pytest.approx(expected, abs=1e-12)


def test_counts_of_texts_add_up() -> None:
    true = [[Entity(0, 1, 0)], [Entity(0, 2, 1), Entity(3, 4, 1)], []]
    guesses = [[Entity(0, 1, 0)], [Entity(0, 2, 1), Entity(3, 4, 0)], [Entity(5, 6, 1)]]
    counts = entity_counts(true, guesses, 2)
    assert counts.sum(axis=0).tolist() == [[1, 2, 1], [1, 2, 2]]
    assert metrics_of_counts(counts.sum(axis=0)) == entity_metrics(true, guesses, 2)
    twice = entity_metrics([*true, true[1]], [*guesses, guesses[1]], 2)
    drawn = np.tensordot(np.array([1, 2, 1]), counts, axes=1)
    assert metrics_of_counts(drawn) == twice


def test_a_text_must_be_there_and_names_are_those_of_the_agent() -> None:
    with pytest.raises(UserError, match="no examples"):
        entity_metrics([], [], 1)
    assert check_metric("entity_f1", "token-classification").higher
    assert check_metric("f1_2", "token-classification", 3).higher
    with pytest.raises(UserError, match="f1_0 to f1_2"):
        check_metric("f1_3", "token-classification", 3)
    with pytest.raises(UserError, match="has no metric 'macro_f1'"):
        check_metric("macro_f1", "token-classification")
    with pytest.raises(UserError, match="has no metric 'f1_0'"):
        check_metric("f1_0", "evidence")
