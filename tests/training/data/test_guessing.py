"""Columns are guessed from names, types and values, so that the guess can be searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.training.data.columns import Columns
from supermax.training.data.guessing import guess_file
from supermax.training.data.splits import read_splits
from tests.training.data.inputs.formats import Record, write_csv, write_jsonl


def rows(author: str, count: int = 120) -> list[Record]:
    """Rows of two splits. `author` is the name of a column; 30 authors are in both splits, or each
    in one with "own_author"."""
    return [
        {
            "text": f"on day {i} all went out for a walk",
            "label": "yes" if i % 2 else "no",
            author: f"a{i % 30}" if author != "own_author" else f"a{i // 4}",
            "split": "train" if i < 80 else "val",
        }
        for i in range(count)
    ]


def test_values_that_are_in_two_splits_are_no_guessed_group(tmp_path: Path) -> None:
    """A search would refuse them."""
    path = write_csv(tmp_path, rows("writer"))
    guessed = guess_file(path)
    assert guessed.role("group") is None
    columns = Columns(**{guess.role: guess.column for guess in guessed.columns})
    assert [len(part.classes) for part in read_splits(path, columns).parts] == [80, 40, 0]


def test_a_column_named_as_group_is_one_and_its_leak_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path, rows("author"))
    columns = Columns(**{guess.role: guess.column for guess in guess_file(path).columns})
    assert columns.group == "author"
    with pytest.raises(UserError, match="rows of its group are in another split"):
        read_splits(path, columns)


def test_a_group_that_splits_keep_together_is_used(tmp_path: Path) -> None:
    assert guess_file(write_csv(tmp_path, rows("own_author"))).role("group") == "own_author"


def test_names_of_splits_are_compared_by_their_meaning(tmp_path: Path) -> None:
    data = rows("own_author")
    for i, row in enumerate(data[80:]):
        row["split"] = "val" if i % 2 else "validation"
    assert guess_file(write_csv(tmp_path, data)).role("group") == "own_author"


def test_answers_in_lists_are_found_by_their_name(tmp_path: Path) -> None:
    data = [
        {"text": f"on day {i} all went out for a long walk", "answers": ["long walk", "walk"]}
        for i in range(20)
    ]
    data[3]["answers"] = []
    guessed = guess_file(write_jsonl(tmp_path, data))
    assert (guessed.role("answer"), guessed.agent) == ("answers", "evidence")
    # Lists of other columns are no answers, and no labels.
    tags = [{"text": row["text"], "tags": ["walk"]} for row in data]
    guessed = guess_file(write_jsonl(tmp_path, tags))
    assert (guessed.role("answer"), guessed.role("label")) == (None, None)


def pairs_of(first: str, second: str) -> list[Record]:
    return [
        {
            first: f"the cat number {i} sat",
            second: f"a long day {i} in the sun",
            "similarity": i / 7,
        }
        for i in range(60)
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [("sentence1", "sentence2"), ("Premise", "Hypothesis"), ("text-a", "text-b")],
)
def test_two_texts_are_a_question_and_a_text(tmp_path: Path, first: str, second: str) -> None:
    guessed = guess_file(write_csv(tmp_path, pairs_of(first, second)), agent="regression")
    assert guessed.mapped == {"question": first, "text": second, "label": "similarity"}
    assert guessed.agent == "regression"


def test_the_only_numbers_are_labels_of_a_regression_that_is_asked_for(tmp_path: Path) -> None:
    path = write_csv(tmp_path, pairs_of("sentence1", "sentence2"))
    guessed = guess_file(path)
    assert guessed.agent == "criteria"
    assert guessed.measured == "similarity"
    two = [row | {"length": i / 3} for i, row in enumerate(pairs_of("sentence1", "sentence2"))]
    assert guess_file(write_csv(tmp_path, two), agent="regression").role("label") is None


def test_two_columns_of_0_and_1_are_labels_if_several_are_asked_for(tmp_path: Path) -> None:
    data: list[Record] = [
        {"comment": f"a long text {i}", "toxic": i % 2, "spam": int(i % 3 == 0)} for i in range(60)
    ]
    path = write_csv(tmp_path, data)
    assert guess_file(path, agent="multilabel").mapped["labels"] == ["toxic", "spam"]
    assert guess_file(path).role("label") == "toxic"


def test_objects_in_jsonl_are_columns_as_in_parquet(tmp_path: Path) -> None:
    data: list[Record] = [
        {
            "context": f"on day {i} all went out for a long walk",
            "question": f"what did they do on day {i}?",
            "answers": {
                "text": ["walk"],
                "answer_start": [len(f"on day {i} all went out for a long ")],
            },
        }
        for i in range(60)
    ]
    guessed = guess_file(write_jsonl(tmp_path, data))
    assert guessed.agent == "evidence"
    assert guessed.mapped == {
        "text": "context",
        "question": "question",
        "answer": "answers.text",
        "answer_start": "answers.answer_start",
    }
