"""Results of a refit that the report shows: no baseline has seen the test split."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from optuna.trial import create_trial

from supermax.engine.storage.run_folder import TrialFolder
from supermax.results.records import TrialRecord
from supermax.search.refit import refit_note
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import split
from supermax.training.data.synthetic import (
    synthetic_entities,
    synthetic_ratings,
    synthetic_requests,
)
from supermax.training.deploy.refit import Refit, RefitRun
from supermax.training.eval.baseline import baseline


@pytest.mark.parametrize(
    ("agent", "corpus", "metric"),
    [
        ("regression", synthetic_ratings(60), "rmse"),
        ("multilabel", synthetic_requests(60), "macro_f1"),
        ("token-classification", synthetic_entities(60), "entity_f1"),
    ],
)
def test_baselines_are_fitted_without_the_test_split(
    agent: str, corpus: Corpus, metric: str
) -> None:
    splits = split(corpus, validation=0.2, test=0.4)
    refitted = Refit(metric, {}, (RefitRun(1, {}, None),), 1, None)
    trial = TrialRecord(create_trial(value=1.0), TrialFolder(Path("/nowhere")))
    note = refit_note(agent, trial, refitted, splits, 3)
    seen = len(splits.train.examples) + len(splits.validation.examples)
    assert note["learnt_from"] == note["tfidf"]["rows"] == seen
    assert note["rows"] == splits.test.count(agent) == 60 - seen
    expected = baseline(splits.seen, splits.test)[metric]
    assert math.isclose(note["tfidf"]["metrics"][metric], expected, abs_tol=1e-5)
