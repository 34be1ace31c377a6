"""Values of two experiments are not mixed in one study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.storages import get_storage

import supermax
from supermax._util.attributes import (
    EXPERIMENT,
    plain_params,
)
from supermax.errors import UserError
from supermax.results.records import read_record
from supermax.results.report.writing import write_report
from supermax.search.search import Search
from supermax.space import find_versions, load, narrowed
from supermax.tasks.preflight import VERSIONS
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import split
from tests.search.searches import search_in
from tests.training.corpora import corpus

pytestmark = pytest.mark.usefixtures("quick", "preloaded")


def test_values_of_another_experiment_are_not_mixed_in(tmp_path: Path) -> None:
    first = search_in(tmp_path, trials=1)
    first.run(progress=False)
    other = replace(first, corpus=corpus(60, seed=5))
    accuracy = replace(first, objectives="accuracy", limits={"epochs": 2})
    for wrong, words in ((other, ["data: "]), (accuracy, ["objectives", "limits"])):
        with pytest.raises(UserError, match="another name or another storage") as caught:
            wrong.run(progress=False)
        assert all(word in str(caught.value) for word in words)
    renamed = Corpus(
        "another file",
        first.corpus.label_names,
        tuple(replace(e, id=f"other {e.id}") for e in first.corpus.classes),
        tuple(replace(e, id=f"other {e.id}") for e in first.corpus.spans),
    )
    again = replace(first, corpus=renamed).run(progress=False)  # the same texts: nothing to do
    assert len(again.study.trials) == 1


def searched_by_old_rules(search: Search) -> optuna.Study:
    """Return a study from before the metrics of spans were redefined: without their versions."""
    study = search.run(progress=False).study
    note = study.user_attrs[EXPERIMENT]
    study.set_user_attr(EXPERIMENT, {k: v for k, v in note.items() if k != VERSIONS})
    return study


@pytest.mark.slow
def test_a_changed_space_is_reported_with_the_trials_it_leaves_behind(tmp_path: Path) -> None:
    first = search_in(tmp_path, trials=1, warn=(resumed := []).append)
    study = first.run(progress=False).study
    replace(first, trials=2).run(progress=False)
    assert resumed == []
    rate = plain_params(study.trials[0])["encoder.dropout"]
    assert first.space is not None
    other = narrowed(first.space, {"encoder.dropout": {"low": rate + 0.01}})
    changed: list[str] = []
    tuned = replace(first, space=other, trials=1, warn=changed.append).run(progress=False)
    assert tuned.study.study_name == "criteria@2"
    said = "\n".join(changed)
    assert said.startswith("The space has changed:")
    assert "encoder.dropout" in said
    assert "Left in the earlier versions: " in said


@pytest.mark.slow
@pytest.mark.parametrize("migrated", [False, True])
def test_values_by_two_definitions_of_a_metric_are_not_mixed(
    tmp_path: Path, migrated: bool
) -> None:
    first = search_in(tmp_path, "evidence", trials=1)
    study = searched_by_old_rules(first)
    if migrated:  # as `supermax study migrate` does: it carries trials over, and no note
        wider = narrowed(load("demo/evidence"), {"text.max_length": 48, "text.doc_stride": 8})
        supermax.open_study(
            wider, storage=first.storage, name="evidence", directions=["maximize"], quiet=True
        )
        first = replace(first, space=wider)
        assert find_versions(get_storage(f"sqlite:///{first.storage}"), "evidence")[1].trials
    with pytest.raises(UserError, match="another name or another storage") as caught:
        replace(first, trials=2).run(progress=False)
    words = "definition of token_f1 (docs/agents.md): version 1 then, version 2 now"
    assert words in str(caught.value)
    record = read_record(study)
    assert record.best().values == study.best_trial.values
    page = write_report(record, tmp_path / "report.html", storage=str(first.storage))
    assert "token_f1" in page.read_text()
    renamed = replace(first, name="anew").run(progress=False)
    assert renamed.study.user_attrs[EXPERIMENT][VERSIONS] == {"token_f1": 2}
    again = replace(first, name="anew", trials=2).run(progress=False)
    assert again.summary.trials["COMPLETE"] == 2


@pytest.mark.slow
def test_a_search_by_unchanged_metrics_resumes(tmp_path: Path) -> None:
    first = search_in(tmp_path, trials=1)
    searched_by_old_rules(first)
    assert len(replace(first, trials=2).run(progress=False).study.trials) == 2


@pytest.mark.slow
def test_a_study_from_before_equal_texts_were_kept_together_is_not_mixed(tmp_path: Path) -> None:
    first = search_in(tmp_path, trials=1)
    twice = replace(first.corpus.classes[1], text=first.corpus.classes[0].text.upper())
    rows = (first.corpus.classes[0], twice, *first.corpus.classes[2:])
    doubled = replace(first, corpus=replace(first.corpus, classes=rows), name="doubled")
    for search in (first, doubled):
        study = search.run(progress=False).study
        noted = study.user_attrs[EXPERIMENT]
        assert noted.pop("splits")
        study.set_user_attr(EXPERIMENT, noted)  # as an earlier version left it
    first.run(progress=False)  # no text stands twice, so its splits are what they were
    with pytest.raises(UserError, match="splits: equal texts") as caught:
        doubled.run(progress=False)
    assert "another name or another storage" in str(caught.value)


@pytest.mark.slow
def test_other_splits_of_the_same_data_are_another_experiment(tmp_path: Path) -> None:
    first = search_in(tmp_path, trials=1)
    first.run(progress=False)
    with pytest.raises(UserError, match="splits: "):
        replace(first, splits=split(first.corpus, seed=1)).run(progress=False)
