"""Statistics of the data that a study stores for its report."""

from __future__ import annotations

import json
from dataclasses import replace

from supermax.tasks.baselines import MOST_ROWS, fitted_baseline, trivial_baseline
from supermax.tasks.data_summary import data_summary, shown_labels
from supermax.tasks.truncation import Cut
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.splits import Splits, split
from supermax.training.data.synthetic import synthetic


def row(name: str, text: str, label: int) -> Example:
    return Example(name, name, text, label=label)


def small() -> Splits:
    labels = ("joy", "a secret sentence of somebody")
    train = tuple(row(f"a{i}", f"word {i} " * (i + 1), i % 2) for i in range(9))
    parts = [train, (row("v", "one two three", 0),), (row("t", "four", 1),)]
    return Splits(*(Corpus("tweets", labels, part) for part in parts))


def test_sizes_classes_and_lengths() -> None:
    cut = Cut("tiny", 16, 3, 11, False)
    found = data_summary("criteria", small(), [cut])
    assert found["splits"]["train"] == {"rows": 9, "groups": 9, "classes": [5, 4]}
    assert found["splits"]["test"] == {"rows": 1, "groups": 1, "classes": [0, 1]}
    assert found["words"] == {"median": 8, "p95": 17, "longest": 18}
    assert found["cut"] == [
        {"encoder": "tiny", "length": 16, "texts": 3, "of": 11, "sampled": False}
    ]


def test_no_text_of_the_data_is_in_it() -> None:
    """A class whose name may be a text is shown as a number."""
    found = data_summary("criteria", small(), [])
    assert found["labels"] == ["joy", "class 1"]
    assert "secret" not in json.dumps(found)
    assert "word" not in json.dumps(found).replace('"words"', "")


def test_a_class_of_a_few_words_has_its_name() -> None:
    splits = small()
    named = replace(splits.train, label_names=("side effects", "not\nrelevant", "x" * 99))
    assert shown_labels(named) == ["side effects", "not relevant", "class 2"]


def test_an_agent_for_spans_has_answers_instead_of_classes_and_cuts_nothing() -> None:
    splits = split(synthetic(60))
    found = data_summary("evidence", splits, [])
    assert found["labels"] == []
    assert not found["cuts"]
    train = found["splits"]["train"]
    assert train["rows"] == len(splits.train.spans) == sum(train["spans"].values())
    assert "classes" not in train


def test_a_split_without_rows() -> None:
    whole = small()
    found = data_summary("criteria", Splits(whole.train, whole.validation, Corpus("x", ())), [])
    assert found["splits"]["test"] == {"rows": 0, "groups": 0}


def test_baselines_are_of_what_the_agent_learns() -> None:
    splits = split(synthetic(60))
    assert "token_f1" not in trivial_baseline("criteria", splits.train, splits.validation)
    assert "macro_f1" not in trivial_baseline("evidence", splits.train, splits.validation)
    found = fitted_baseline("criteria", splits.train, splits.validation)
    assert found["rows"] == found["of"] == len(splits.train.classes)
    assert found["metrics"]["macro_f1"] > 0.5
    json.dumps(found, allow_nan=False)


def test_texts_without_words_and_many_rows_stop_nothing() -> None:
    emoji = Corpus("x", ("a", "b"), tuple(row(f"{i}", "!?", i % 2) for i in range(MOST_ROWS + 9)))
    found = fitted_baseline("criteria", emoji, emoji)
    assert found == {"metrics": {}, "rows": MOST_ROWS, "of": MOST_ROWS + 9}
