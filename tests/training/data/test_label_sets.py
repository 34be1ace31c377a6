"""Sets of labels: lists, text with a separator, and columns of 0 and 1."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supermax.errors import UserError
from supermax.training.data.chosen_columns import chosen_columns
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.guessing import Guessed, guess_file
from supermax.training.data.label_sets import detect_separator, indicators, parts_of
from supermax.training.data.splits import read_splits, split
from supermax.training.data.synthetic import synthetic_requests
from supermax.training.data.tables import read_table

SETS = Columns(text="text", label="mood", several=True)


def jsonl(path: Path, cells: list[Any], key: str = "mood") -> Path:
    rows = [{"text": f"a long text {i}", key: cell} for i, cell in enumerate(cells)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, header: list[str], rows: list[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def sets_of(corpus: Corpus) -> list[list[str]]:
    return [[corpus.label_names[i] for i in e.labels or ()] for e in corpus.label_sets]


def test_lists_and_separated_text_name_the_same_labels(tmp_path: Path) -> None:
    lists = jsonl(tmp_path / "a.jsonl", [["joy", "fear"], [], ["anger"], None, ["joy"]])
    corpus = read_table(lists, SETS)
    assert corpus.label_names == ("anger", "fear", "joy")
    assert sets_of(corpus) == [["fear", "joy"], [], ["anger"], ["joy"]]
    assert corpus.unlabelled[0].rows == 1  # null is unknown, and [] is none of them
    assert (corpus.classes, corpus.spans) == ((), ())
    for mark in "|;,":
        cells = [f"joy{mark} fear", "", "anger", None, "joy"]
        assert sets_of(read_table(jsonl(tmp_path / "b.jsonl", cells), SETS)) == sets_of(corpus)
    rows = [["a long text 0", "joy;fear"], ["a long text 1", ""], ["c", "anger"], ["d", "joy"]]
    separated = read_table(table(tmp_path / "c.csv", ["text", "mood"], rows), SETS)
    assert sets_of(separated) == sets_of(corpus)  # in CSV, an empty cell is none of them
    assert not separated.unlabelled


def test_a_named_separator_is_used(tmp_path: Path) -> None:
    cells = ["joy / fear, mild", "fear, mild", "joy"]
    columns = Columns(text="text", label="mood", several=True, label_separator="/")
    corpus = read_table(jsonl(tmp_path / "a.jsonl", cells), columns)
    assert sets_of(corpus) == [["fear, mild", "joy"], ["fear, mild"], ["joy"]]


def test_known_labels_decide_the_separator() -> None:
    cells = ["a, b; c", "c; a, b", "c", ["a, b"]]
    assert detect_separator(cells) in ",;"
    assert detect_separator(cells, ["a, b", "c"]) == ";"
    assert detect_separator(["a", "b", "a,b"], ["a", "b", "a,b"]) == ""


@pytest.mark.parametrize("text", ['["joy", "fear"]', "['joy', 'fear']", " ['joy','fear'] "])
def test_lists_that_are_written_as_text_are_lists(text: str) -> None:
    assert parts_of(text, "") == ["joy", "fear"]
    assert detect_separator([text, "['joy']"]) == ""


def test_columns_of_0_and_1_are_read_as_sets(tmp_path: Path) -> None:
    header, columns = (
        ["text", "joy", "fear"],
        Columns("text", labels=("joy", "fear"), several=True),
    )
    rows = [["a", "1", "0"], ["b", "0", "0"], ["c", "1.0", "True"], ["d", "", ""]]
    path = table(tmp_path / "a.csv", header, rows)
    corpus = read_table(path, columns)
    assert corpus.label_names == ("joy", "fear")
    assert sets_of(corpus) == [["joy"], [], ["joy", "fear"]]
    assert corpus.unlabelled[0].rows == 1
    bad = table(tmp_path / "b.csv", header, [*rows, ["e", "2", "0"], ["f", "", "1"]])
    with pytest.raises(UserError, match="2 mistakes in 2 rows") as error:
        read_table(bad, columns)
    assert "b.csv, line 6: the column 'joy' holds neither 0 nor 1; 1 more" in str(error.value)
    with pytest.raises(UserError, match="there is no column 'anger'"):
        read_table(path, Columns(text="text", labels=("joy", "anger"), several=True))


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        (["joy", ""], "a label in the column 'mood' is empty"),
        (["joy", ["fear"]], "the column 'mood' holds a list or an object, not labels"),
        ({"joy": 1}, "the column 'mood' holds a list or an object, not labels"),
        ("joy;;fear", "a label in the column 'mood' is empty"),
        ([0, 1, 0, 0], "a label occurs twice in the column 'mood' (if it lists 0 and 1"),
        (["\ud800"], "half a character"),
    ],
)
def test_mistakes_are_named_by_row_and_column(tmp_path: Path, cell: object, what: str) -> None:
    good: list[Any] = ["joy;fear", ["joy"], ["fear"], "joy", "fear"] * 5
    path = jsonl(tmp_path / "a.jsonl", [*good, cell])
    with pytest.raises(UserError) as error:
        read_table(path, SETS)
    assert f"a.jsonl, line {len(good) + 1}: " in str(error.value)
    assert what in str(error.value)
    assert len(read_table(path, SETS, on_bad="skip").label_sets) == len(good)


def test_other_labels_than_the_listed_ones_are_mistakes(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [["joy"], ["fear", "anger"]])
    with pytest.raises(UserError, match=r"line 2: a label in the column 'mood' is none of the 2"):
        read_table(path, SETS, labels=["joy", "fear"])
    corpus = read_table(path, SETS, labels=["joy", "calm", "fear", "anger"])
    assert corpus.label_names == ("joy", "calm", "fear", "anger")


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([[], [], ""], "holds no label in any row"),
        ([["joy"], []], "holds only the label 'joy'"),
        ([[f"word {i}"] for i in range(60)], "holds 60 different labels in 60 rows"),
    ],
)
def test_nothing_to_learn_from(tmp_path: Path, cells: list[Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        read_table(jsonl(tmp_path / "a.jsonl", cells), SETS)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"labels": ("a", "b")}, "only the agent multilabel"),
        ({"labels": ("a",), "several": True}, "at least two"),
        ({"labels": ("a", "a"), "several": True}, "'a' is mapped twice"),
        ({"labels": ("a", "t"), "several": True}, "'t' is mapped twice"),
        ({"labels": ("a", "b"), "label": "c", "several": True}, "leave one of both out"),
        ({"label": "c", "label_separator": ";"}, "for the column label of the agent multilabel"),
    ],
)
def test_mappings_that_contradict_themselves(
    tmp_path: Path, columns: dict[str, Any], why: str
) -> None:
    path = table(tmp_path / "a.csv", ["t", "a", "b", "c"], [["x", "0", "1", "y"]])
    with pytest.raises(UserError, match=why):
        read_table(path, Columns(text="t", **columns))


def test_a_label_of_the_validation_split_alone_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"t{i}", "mood": ["joy"] * (i % 2), "part": "train"} for i in range(6)]
    rows += [{"text": "v", "mood": ["fear"], "part": "dev"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(text="text", label="mood", split="part", several=True)
    splits = read_splits(path, columns)
    assert [len(part.label_sets) for part in splits.parts] == [6, 1, 0]
    assert {part.label_names for part in splits.parts} == {("fear", "joy")}
    assert splits.seen.label_sets == splits.train.label_sets + splits.validation.label_sets


def test_splits_keep_the_share_of_each_label() -> None:
    corpus = synthetic_requests(600, difficulty=0.5)
    splits = split(corpus, validation=0.2, test=0.2)
    shares = [indicators(part.label_sets, 5).mean(axis=0) for part in splits.parts]
    assert np.abs(shares[0] - shares[1]).max() < 0.03
    assert np.abs(shares[0] - shares[2]).max() < 0.03


def test_the_fingerprint_depends_on_the_labels() -> None:
    first = synthetic_requests(20)
    assert first.fingerprint == synthetic_requests(20).fingerprint
    one, other = (
        Corpus("c", ("a", "b"), label_sets=(Example("1", "1", "t", labels=own),))
        for own in ((0,), (0, 1))
    )
    assert one.fingerprint != other.fingerprint


def test_unknown_labels_are_nan() -> None:
    examples = [Example("1", "1", "t", labels=(0, 2)), Example("2", "2", "t")]
    found = indicators(examples, 3)
    assert found[0].tolist() == [1, 0, 1]
    assert np.isnan(found[1]).all()


MOODS = [["joy"], ["joy", "fear"], ["fear"], [], ["anger"], ["anger", "joy"]] * 10


def guessed(path: Path) -> Guessed:
    found = guess_file(path)
    assert found.agent == "multilabel"
    return found


@pytest.mark.parametrize("key", ["mood", "labels"])
def test_lists_of_names_are_guessed_as_sets_of_labels(tmp_path: Path, key: str) -> None:
    found = guessed(jsonl(tmp_path / "a.jsonl", MOODS, key))
    assert found.mapped == {"text": "text", "label": key}
    assert found.labels == ("anger", "fear", "joy")


def test_lists_for_each_word_are_no_sets_of_labels(tmp_path: Path) -> None:
    rows = [
        {"text": f"a b {i}", "words": ["a", "b", str(i)], "tags": ["X", "Y", "Z"]}
        for i in range(60)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert guess_file(path).agent != "multilabel"


def test_columns_of_0_and_1_are_guessed_as_labels(tmp_path: Path) -> None:
    rows = [
        [f"a long text {i}", str(i % 2), str(int(i % 3 == 0)), str(int(i % 5 == 0))]
        for i in range(60)
    ]
    path = table(tmp_path / "a.csv", ["comment", "rude", "threat", "spam"], rows)
    found = guessed(path)
    assert found.mapped == {"text": "comment", "labels": ["rude", "threat", "spam"]}
    two = table(tmp_path / "b.csv", ["comment", "rude", "spam"], [row[:3] for row in rows])
    assert guess_file(two).agent == "criteria"


def test_a_search_has_the_columns_of_its_predictions(tmp_path: Path) -> None:
    rows = [[f"a long text {i}", str(i % 2), str(i % 3 // 2)] for i in range(30)]
    path = table(tmp_path / "a.csv", ["note", "rude", "spam"], rows)
    known = {"text": "note", "labels": ["rude", "spam"]}
    nothing = dict.fromkeys(("text", "label"))
    found = chosen_columns(path, None, nothing, known, asks=False)
    assert (found.labels, found.label) == (("rude", "spam"), None)
    given = chosen_columns(path, None, {"label": "rude"}, known, asks=False)
    assert (given.labels, given.label) == (None, "rude")
    known = {"text": "note", "label": "rude", "label_separator": "/"}
    assert chosen_columns(path, None, nothing, known, asks=False).label_separator == "/"
    assert chosen_columns(path, None, {"label": "spam"}, known, asks=False) == Columns(
        text="note", label="spam"
    )


@pytest.mark.parametrize("kind", ["parquet", "frame", "dataset"])
def test_other_formats_have_lists_too(tmp_path: Path, kind: str) -> None:
    names = ["joy", "fear"]
    data = {"text": ["a b c", "d e f", "g h i"], "mood": [["joy", "fear"], [], ["fear"]]}
    source: Any = tmp_path / "a.parquet"
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table(data), source)
    elif kind == "frame":
        source = pytest.importorskip("pandas").DataFrame(data)
    else:
        datasets = pytest.importorskip("datasets")
        numbered = {**data, "mood": [[0, 1], [], [1]]}
        features = datasets.Features(
            {
                "text": datasets.Value("string"),
                "mood": datasets.Sequence(datasets.ClassLabel(names=names)),
            }
        )
        source = datasets.Dataset.from_dict(numbered, features=features)
    corpus = read_table(source, SETS)
    assert sorted(map(sorted, sets_of(corpus))) == [[], ["fear"], ["fear", "joy"]]
    if kind == "dataset":  # the order of the ClassLabel
        assert corpus.label_names == ("joy", "fear")
