"""A search whose best trial answers without reading the texts says so."""

from __future__ import annotations

from typing import Any, cast

import pytest

from supermax.cli.tune import outcome
from supermax.engine.summary import Summary
from supermax.search import Search
from supermax.settings import Settings
from supermax.training.data.splits import Splits
from supermax.tuning import Tuned
from tests.training.corpora import corpus

SPLITS = Splits(corpus(40, 1), corpus(30, 2), corpus(20, 3))
SILENT = sum(not example.spans for example in SPLITS.validation.spans) / len(
    SPLITS.validation.spans
)


class _Tuned(Tuned):
    """One whose best trial has the value of the study that it was given."""

    def best(self, top: int = 5) -> list[dict[str, Any]]:
        return [{"trial": 0, "values": [self.study], "encoder": "tiny"}]


def said(agent: str, objective: str, value: float) -> str:
    summary = cast("Summary", type("Done", (), {"stopped_by": None}))
    tuned = _Tuned(agent, cast("Any", value), summary, SPLITS, cast("Any", None), [objective], {})
    settings = Settings(agent=cast("Any", agent), trials=1, epochs=1)
    search = cast("Search", type("Prepared", (), {"settings": settings}))
    return "\n".join(outcome(search, tuned))


@pytest.mark.parametrize("value", [SILENT, SILENT - 0.1])
def test_a_span_search_that_answers_nothing_is_told_as_that(value: float) -> None:
    assert 0 < SILENT < 1
    assert f"no better than answering without reading (the most frequent class, no answer), " \
           f"which scores {SILENT:.4f}" in said("evidence", "token_f1", value)  # fmt: skip


def test_one_that_learns_is_not() -> None:
    assert "without reading" not in said("evidence", "token_f1", SILENT + 0.01)
    assert "without reading" not in said("criteria", "macro_f1", 0.9)
    assert "without reading" in said("criteria", "macro_f1", 0.3)
    assert "without reading" not in said("criteria", "model_size", 10.0)
