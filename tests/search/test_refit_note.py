"""Note on a refit, which the report shows beside baselines on the test split."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supermax.search.refit import refit_note
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import split
from supermax.training.data.synthetic_entities import synthetic_entities
from supermax.training.data.synthetic_ratings import synthetic_ratings
from supermax.training.deploy.refit import Refit, RefitRun


@pytest.mark.parametrize(
    ("agent", "corpus"),
    [("regression", synthetic_ratings(60)), ("token-classification", synthetic_entities(60))],
)
def test_baselines_are_not_fitted_on_the_test_split(agent: str, corpus: Corpus) -> None:
    splits = split(corpus)
    trial: Any = SimpleNamespace(number=3)
    refitted = Refit("", {}, (RefitRun(1, {}, None),), 1, None)
    note = refit_note(agent, trial, refitted, splits, epochs=2)
    seen = splits.train.count(agent) + splits.validation.count(agent)
    assert note["learnt_from"] == note["tfidf"]["of"] == seen
    assert note["rows"] == splits.test.count(agent) == 60 - seen
    assert note["tfidf"]["metrics"].keys() == note["trivial"].keys()
