"""Report sections on data, baselines and refit, and figures that are hidden with few trials."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from sklearn.metrics import accuracy_score, f1_score

from supermax._util.attributes import BASELINES, DATA, NOTICES, REFIT, SETTINGS
from supermax.results.intervals import interval
from supermax.results.records import StudyRecord, read_record
from supermax.results.report import figures
from supermax.results.report.collect import collect
from supermax.results.report.page import page
from supermax.results.report.text import rate
from supermax.search.settings.model import Settings
from supermax.space import Space, load, open_version
from tests.results.report import studies
from tests.results.report.test_page import Parsed

DATA_NOTE: dict[str, Any] = {
    "labels": ["joy", "anger"],
    "splits": {
        "train": {"rows": 2600, "groups": 2600, "classes": [1500, 1100]},
        "validation": {"rows": 374, "groups": 374, "classes": [204, 170]},
        "test": {"rows": 1421, "groups": 1421, "classes": [821, 600]},
    },
    "texts": 4395,
    "words": {"median": 16, "p95": 27, "longest": 33},
    "characters": {"median": 95, "p95": 139, "longest": 166},
    "cut": [{"encoder": "tiny", "length": 32, "texts": 700, "of": 4395, "sampled": True}],
    "cuts": True,
}
BASELINES_NOTE = {
    "trivial": {"macro_f1": 0.3528},
    "tfidf": {"metrics": {"macro_f1": 0.9512}, "rows": 2600, "of": 2600},
}
REFIT_NOTE = {
    "trial": 2,
    "seeds": 3,
    "rows": 1421,
    "metrics": {"macro_f1": [0.7812, 0.7511, 0.8123], "f1_1": [0.8031, None, None]},
    "counts": {"confusion": [[801, 20], [64, 536]]},
    "cautions": ["1 text of the test split also stands in train."],
    "trivial": {"macro_f1": 0.3661},
    "tfidf": {"metrics": {"macro_f1": 0.6999}, "rows": 2974, "of": 2974},
}


def noted(trials: int = 6, **notes: Any) -> StudyRecord:
    study = studies.agent_study(None)
    record = studies.rich(study, trials=trials)
    for key, value in notes.items():
        study.set_user_attr({"data": DATA, "baselines": BASELINES, "refit": REFIT}[key], value)
    for trial in record.of("COMPLETE"):
        counted = {"labels": ["joy", "anger"], "confusion": [[190, 14], [33, 137]]}
        trial.trial.user_attrs["result"] |= counted
    return record


def words(record: StudyRecord) -> str:
    return Parsed(page(record, "study.db", 0.0)).text


def test_the_data_section_has_splits_classes_lengths_and_truncation() -> None:
    text = words(noted(data=DATA_NOTE))
    for expected in (
        "2,600",
        "1,500 (58%)",
        "anger",
        "170 (45%)",
        "4,395 texts",
        "About 700 of 4,395 texts to classify (16%) are truncated at 32 tokens",
    ):
        assert expected in text, expected


def test_the_best_value_is_compared_with_the_baselines_on_the_validation_split() -> None:
    record = noted(data=DATA_NOTE, baselines=BASELINES_NOTE)
    text = words(record)
    best = record.ranking()[0]
    assert f"Trial {best.number} has the highest macro_f1 on the validation split" in text
    assert "validation, n=374" in text
    assert "0.3528" in text
    assert "0.9512" in text
    assert "no better than TF-IDF with logistic regression on the validation split" in text
    assert "supermax refit" in text
    assert f"of trial {best.number} on the validation split" in text
    assert "137" in text  # of its confusion matrix


def test_a_refit_is_on_the_test_split_with_an_interval() -> None:
    text = words(noted(data=DATA_NOTE, baselines=BASELINES_NOTE, refit=REFIT_NOTE))
    for expected in (
        "A refit of trial 2 has 0.7812 (95% interval 0.7511 to 0.8123) on the test split",
        "test, n=1,421",
        "0.6999",
        "f1 of anger",
        "0.8031",
        "1 text of the test split also stands in train.",
        "the refit of trial 2 (median of its seeds) on the test split",
        "536",
    ):
        assert expected in text, expected
    assert "`supermax refit` trains" not in text


def test_span_examples_are_counted() -> None:
    counts = {"spans": {"exact": 30, "missed": 10}}
    text = words(noted(refit=REFIT_NOTE | {"counts": counts}))
    assert "exact match" in text
    assert "30 (75%)" in text


def test_a_study_of_an_earlier_version_has_no_such_sections(rich: StudyRecord) -> None:
    parsed = Parsed(page(rich, "study.db", 0.0))
    ids = {attributes.get("id") for _, attributes in parsed.tags}
    assert not ids & {"result", "predictions", "data"}
    assert "best" in ids


@pytest.mark.parametrize("odd", [{}, {"splits": 3}, {"splits": {"train": []}}, [1], "text", None])
def test_invalid_notes_are_ignored(odd: Any) -> None:
    notes = {"metrics": {"macro_f1": odd, "x": [None]}, "counts": odd, "trivial": odd}
    study = noted(data=odd, baselines=odd, refit=notes).study
    study.set_user_attr(SETTINGS, odd)
    study.set_user_attr(NOTICES, odd)
    assert "<!doctype html>" in page(read_record(study), "study.db", 0.0)


def test_hostile_names_of_classes_are_text() -> None:
    labels = ["<script>window.ran=1</script>", "b"]
    text = page(noted(data=DATA_NOTE | {"labels": labels}), "study.db", 0.0)
    assert "&lt;script&gt;window.ran=1" in text
    assert "<script>window.ran=1" not in text


# What reproduces a search.


def test_the_settings_of_the_search_run_it_again() -> None:
    """The file is read as any other, and has the same space, data and limits."""
    space = load("criteria")
    study = open_version(space, storage=None, name="notes").study
    kept = {
        "agent": "criteria",
        "data": {"path": "/home/somebody/notes.csv", "columns": {"text": "body", "label": "kind"},
                 "labels": ["no", "yes"], "test": 0.2},
        "trials": 7,
        "epochs": 3,
        "narrow": {"optim.lr": {"low": 1e-5, "high": 1e-4}},
        "cache": "/home/somebody/cache",
        "timeout": 60.0,
    }  # fmt: skip
    study.set_user_attr(SETTINGS, kept)
    text = words(read_record(study))
    assert "supermax tune search.yaml" in text
    assert "somebody" not in text.split("Run the search again")[1]
    made = yaml.safe_load(collect(read_record(study), "study.db").settings)
    again = Settings.model_validate(made)
    before = Settings.model_validate(kept)
    assert Space(**made["space"]) == space
    assert again.data.columns == before.data.columns
    assert (again.data.path, again.data.labels) == ("notes.csv", ["no", "yes"])
    assert (again.trials, again.epochs, again.data.test, again.timeout) == (7, 3, 0.2, 60.0)
    assert again.name == "notes"
    assert not again.narrow  # the space has it


# Few trials.


def test_figures_without_enough_trials_are_hidden_with_a_note() -> None:
    record = noted(trials=6)
    complete = len(record.of("COMPLETE"))
    assert complete < 10
    assert figures.importances(record) is None
    assert figures.parallel(record) is None
    assert figures.slices(record, ["optim.lr"]) == {}
    assert figures.throughput(record) is None
    expected = "need at least 20 complete trials, slices and parallel coordinates 10"
    assert f"{expected}; there are {complete}." in words(record)


def test_a_single_encoder_has_no_comparison(empty: optuna.Study) -> None:
    empty.enqueue_trial({"encoder.name": "tiny"})
    empty.optimize(lambda t: float(t.suggest_categorical("encoder.name", ["tiny"]) == "x"), 1)
    assert figures.encoders(read_record(empty)) is None


def test_a_legend_has_more_than_one_entry(empty: optuna.Study) -> None:
    def objective(trial: optuna.Trial) -> float:
        for epoch in (1, 2):
            trial.report(0.5, epoch)
        return trial.suggest_float("x", 0, 1)

    empty.optimize(objective, n_trials=1)
    one = figures.curves(read_record(empty))
    assert one is not None
    assert one.layout.showlegend is False
    empty.optimize(objective, n_trials=1)
    two = figures.curves(read_record(empty))
    assert two is not None
    assert two.layout.showlegend is True


def test_epochs_and_trials_are_whole_numbers_on_axes() -> None:
    record = noted(trials=6)
    for figure in (figures.curves(record), figures.history(record), figures.durations(record)):
        assert figure is not None
        assert figure.layout.xaxis.dtick == 1
        assert figure.layout.xaxis.tickformat == ",d"
    curves = figures.curves(record)
    assert curves is not None
    assert curves.layout.xaxis.title.text == "epoch"


def test_curves_are_darker_the_better(rich: StudyRecord) -> None:
    curves = figures.curves(rich)
    assert curves is not None
    colours = [trace.line.color for trace in curves.data if trace.name != "others"]
    light = [sum(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in colours]
    assert light == sorted(light)
    assert len(set(light)) == len(light)


def test_memory_is_in_one_unit(rich: StudyRecord) -> None:
    figure = figures.memory(rich)
    assert figure is not None
    assert figure.layout.yaxis.title.text == "memory (GiB)"
    host = next(trace for trace in figure.data if trace.name == "host, measured")
    first = rich.trials[host.x[0]]
    assert host.y[0] == pytest.approx(first.notes["peak_rss"] / 2**30, abs=1e-3)


def test_rates_are_formatted() -> None:
    assert [rate(value) for value in (None, 3186.2, 41.23, 0.351, 999.7)] == [
        "–", "3,190", "41.2", "0.351", "1,000",
    ]  # fmt: skip


def test_the_interval_of_the_best_trial_is_a_bootstrap_over_rows() -> None:
    """Compared with scikit-learn's metric on rows sampled with replacement."""
    confusion = [[190, 14], [33, 137]]
    truth, given = rows_of(confusion)
    metrics: dict[str, Callable[..., float]] = {
        "macro_f1": partial(f1_score, average="macro"),
        "accuracy": accuracy_score,
    }
    rng = np.random.default_rng(1)
    for name, metric in metrics.items():
        found = interval(confusion, name, metric(truth, given))
        drawn = [rng.integers(0, len(truth), len(truth)) for _ in range(400)]
        expected = np.quantile([metric(truth[i], given[i]) for i in drawn], (0.025, 0.975))
        assert found == pytest.approx(expected, abs=0.012)
    assert interval(confusion, "macro_f1", 0.5) is None  # of another evaluation
    assert interval(confusion, "auroc", 0.9) is None
    assert interval([], "accuracy", 0.9) is None
    assert interval([[5, 0], [0, 4]], "accuracy", 1.0) is None  # too few rows


def test_an_interval_over_rows_is_given_only_where_rows_are_independent() -> None:
    confusion = [[190, 14], [33, 137]]
    for groups, given in ((374, True), (120, False)):
        data = json.loads(json.dumps(DATA_NOTE))
        data["splits"]["validation"]["groups"] = groups
        record = noted(data=data, baselines=BASELINES_NOTE)
        best = record.ranking()[0]
        best.trial.values = [f1_score(*rows_of(confusion), average="macro")]
        assert ("bootstrap over rows" in words(record)) is given


def rows_of(confusion: list[list[int]]) -> tuple[Any, Any]:
    return (
        np.repeat([0, 0, 1, 1], np.ravel(confusion)),
        np.repeat([0, 1, 0, 1], np.ravel(confusion)),
    )


def test_a_matrix_has_recall_and_precision_of_each_class() -> None:
    text = " ".join(words(noted(data=DATA_NOTE, baselines=BASELINES_NOTE)).split())
    assert "joy 190 14 204 93%" in text
    assert "anger 33 137 170 81%" in text
    assert "precision 85% 91%" in text


def test_a_refit_of_one_seed_has_no_mean_and_names_its_model_folder() -> None:
    alone = REFIT_NOTE | {"seeds": 1, "folder": "mail-model", "epochs": 3, "learnt_from": 2974}
    text = words(noted(data=DATA_NOTE, baselines=BASELINES_NOTE, refit=alone))
    assert "trial 2, refit with 1 seed" in text
    assert "the refit of trial 2 on the test split" in text
    assert "One seed does not show how results vary between seeds." in text
    assert "trained on 2,974 rows for 3 epochs. The model is in mail-model." in text
    assert "and seeds" not in text
    assert "1 seed, mean" not in text
