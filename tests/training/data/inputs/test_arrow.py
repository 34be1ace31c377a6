"""Parquet: classes by name, structs as columns, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.arrow import class_names
from supermax.training.data.inputs.reading import read_rows
from supermax.training.data.tables import Columns, read_table
from tests.training.data.inputs.formats import GOOD, write_parquet

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    table = pyarrow.table(columns)
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_classes_that_datasets_noted_have_their_names(tmp_path: Path) -> None:
    noted = (
        '{"info": {"features": {"y": {"names": ["neg", "pos", "odd"], "_type": "ClassLabel"}}}}'
    )
    columns = {"t": ["one text", "two texts", "three texts"], "y": [1, 0, -1]}
    path = written(tmp_path / "data.parquet", columns, {"huggingface": noted})
    corpus = read_table(path, Columns("t", label="y"))
    assert corpus.label_names == ("neg", "pos", "odd")
    assert [e.label for e in corpus.classes] == [1, 0]
    assert corpus.unlabelled[0].rows == 1
    guessed = guess_file(path)
    assert guessed.role("label") == "y"
    assert guessed.labels == ("neg", "pos", "odd")


def test_names_of_classes_in_lists() -> None:
    label = {"names": ["a", "b"], "_type": "ClassLabel"}
    features = {
        "one": label,
        "many": {"feature": label, "_type": "List"},
        "text": {"dtype": "string", "_type": "Value"},
        "pairs": {"a": label},
    }
    assert class_names(features) == {"one": ("a", "b"), "many": ("a", "b")}


def test_fields_of_a_struct_are_columns(tmp_path: Path) -> None:
    """The answers of SQuAD are such a struct."""
    answers = [{"text": ["long walk", "walk"], "answer_start": [9, 14]}] * 6
    answers += [{"text": [], "answer_start": []}] * 6
    columns = {"context": ["It was a long walk home"] * 12, "answers": answers}
    path = written(tmp_path / "data.parquet", columns)
    guessed = guess_file(path)
    roles = {guess.role: guess.column for guess in guessed.columns}
    assert roles == {
        "text": "context",
        "answer": "answers.text",
        "answer_start": "answers.answer_start",
    }
    assert guessed.agent == "evidence"
    corpus = read_table(path, Columns(**roles))
    assert corpus.spans[0].spans == ((9, 18), (14, 18))
    assert corpus.spans[-1].spans == ()


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_text("text,label\n")
    with pytest.raises(UserError, match=r"is not a Parquet file. Name it .csv or .jsonl"):
        read_rows(tmp_path / "data.parquet", BadRows())
    with pytest.raises(UserError, match=r"There is no file .*; did you mean 'data.parquet'"):
        read_rows(tmp_path / "date.parquet", BadRows())


@pytest.mark.parametrize("left", [0.5, 0.99])
def test_a_truncated_parquet_file_is_refused(tmp_path: Path, left: float) -> None:
    path = write_parquet(tmp_path, GOOD * 50)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
    with pytest.raises(UserError, match=r"is a damaged Parquet file .*download it again"):
        read_rows(path, BadRows())


def test_bytes_are_no_text(tmp_path: Path) -> None:
    path = written(tmp_path / "data.parquet", {"t": [b"\xff\xfe", b"x"], "y": ["a", "b"]})
    with pytest.raises(UserError, match="row index 0: the text is a value of the type bytes"):
        read_table(path, Columns("t", label="y"))


@pytest.mark.parametrize("kind", ["date", "time", "text"])
def test_values_that_python_cannot_represent_are_mistakes_in_their_rows(
    tmp_path: Path, kind: str
) -> None:
    odd = {
        "date": pyarrow.array([0, 2**30], pyarrow.date32()),
        "time": pyarrow.array([0, 2**62], pyarrow.timestamp("us")),
        "text": pyarrow.Array.from_buffers(
            pyarrow.string(), 2, pyarrow.array([b"fine", b"\xff\xfe"]).buffers()
        ),
    }
    path = written(tmp_path / "data.parquet", {"t": ["one text", "two texts"], "odd": odd[kind]})
    assert [e.text for e in read_table(path, Columns("t")).classes] == ["one text", "two texts"]
    with pytest.raises(
        UserError, match=r"1 mistake in 1 row.*\n.*row index 1: the label is a value"
    ):
        read_table(path, Columns("t", label="odd"))


@pytest.mark.parametrize(
    "noted", ["{not json", "[]", '{"info": null}', '{"info": {"features": 1}}']
)
def test_notes_of_datasets_that_are_damaged_are_ignored(tmp_path: Path, noted: str) -> None:
    columns = {"t": ["one text", "two texts"], "y": ["a", "b"]}
    path = written(tmp_path / "data.parquet", columns, {"huggingface": noted})
    assert read_table(path, Columns("t", label="y")).label_names == ("a", "b")
