"""Each format gives the same rows, and its mistakes are named by their place and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.reading import read_rows, source_stem
from supermax.training.data.inputs.stored import read_stored, stored
from supermax.training.data.tables import Columns, read_table
from tests.training.data.inputs.formats import FORMATS, GOOD, SECRET, Format, write_csv

COLUMNS = Columns("text", label="label", id="id")
each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def refused(source: Any, columns: Columns = COLUMNS, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_table(source, columns, **options)
    message = str(caught.value)
    assert SECRET not in message
    return message


@each_format
def test_all_formats_give_the_same_corpus(tmp_path: Path, form: Format) -> None:
    plain = read_table(write_csv(tmp_path, GOOD), COLUMNS)
    found = read_table(form.make(tmp_path, GOOD), COLUMNS)
    assert found.fingerprint == plain.fingerprint
    assert found.label_names == ("neg", "pos")
    assert [e.id for e in found.classes] == [row["id"] for row in GOOD]


@each_format
def test_columns_are_guessed_alike(tmp_path: Path, form: Format) -> None:
    guessed = guess_file(form.make(tmp_path, GOOD))
    assert {guess.role: guess.column for guess in guessed.columns} == {
        "id": "id",
        "text": "text",
        "label": "label",
    }
    assert guessed.labels == ("neg", "pos")


@each_format
def test_mistakes_are_named_by_their_place(tmp_path: Path, form: Format) -> None:
    rows = [dict(row) for row in GOOD]
    rows[2]["text"] = None
    rows[3]["text"] = "  "
    rows[5]["label"] = "neutral"
    rows[7]["id"] = "r1"
    source = form.make(tmp_path, rows)
    message = refused(source, labels=["neg", "pos"])
    assert f"{form.place(2)} (id r2): the text is missing; 1 more like it (" in message
    assert form.place(3).rpartition(" ")[2] + ")" in message
    assert f"{form.place(5)} (id r5): the label is none of neg, pos" in message
    first = form.place(1).partition(", ")[2]
    assert f"{form.place(7)} (id r1): the id occurs twice (first in {first})" in message
    kept = read_table(source, COLUMNS, labels=["neg", "pos"], on_bad="skip")
    assert (len(kept.classes), kept.skipped) == (8, 4)


@each_format
def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path, form: Format) -> None:
    message = refused(form.make(tmp_path, GOOD), Columns("text", label="lable"))
    assert f"{form.whole}: there is no column 'lable'; did you mean 'label'?" in message


@each_format
def test_rows_without_an_id_are_named_by_their_place(tmp_path: Path, form: Format) -> None:
    rows = [{"text": row["text"], "label": row["label"]} for row in GOOD]
    corpus = read_table(form.make(tmp_path, rows), Columns("text", label="label"))
    source, _, at = form.place(4).partition(", ")
    assert corpus.classes[4].id == f"{source}:{at.rpartition(' ')[2]}"


@each_format
def test_rows_in_memory_are_stored_unchanged(tmp_path: Path, form: Format) -> None:
    table = read_rows(form.make(tmp_path, GOOD), BadRows())
    assert read_stored(stored(table).write(tmp_path / "stored")) == table


def test_lists_are_kept_and_refused_where_one_value_belongs(tmp_path: Path) -> None:
    """Cells with lists are open to other roles; a text or a label is one value."""
    lists = [{"text": row["text"], "tags": ["a", "b"]} for row in GOOD]
    for form in FORMATS[2:]:
        source = form.make(tmp_path / form.name, lists) if _folder(tmp_path, form) else None
        assert [row.values["tags"] for row in read_rows(source, BadRows()).rows] == [
            ["a", "b"]
        ] * len(lists)
        message = refused(source, Columns("text", label="tags"), on_bad="stop")
        assert f"{form.place(0)}: the label is a list or an object" in message


def _folder(tmp_path: Path, form: Format) -> bool:
    (tmp_path / form.name).mkdir()
    return True


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("data.csv", b"PK\x03\x04\x14\x00", "a workbook. Save its table as CSV"),
        ("data.csv", b"PAR1\x15\x04", "not text but Parquet. Name it .parquet"),
        ("data.jsonl", b"\x1f\x8b\x08\x00", "a gzip file. Add .gz to its name"),
        ("data.csv", b"text,label\n\x00\x01\x02\x00\x00\x07,a\n", "null bytes"),
        ("data.json", b"[]", "If each of its lines is one object, name it .jsonl"),
        ("data.csv.gz", b"text,label\n", "If it is not compressed, name it without .gz"),
    ],
)
def test_files_of_another_kind_are_refused_with_advice(
    tmp_path: Path, name: str, data: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(data)
    assert what in refused(tmp_path / name)


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    path = FORMATS[1].make(tmp_path, GOOD)
    path.write_bytes(path.read_bytes()[:-12])
    assert "not a whole gzip file: its end is missing" in refused(path)


@pytest.mark.parametrize("source", [3, {"text": []}, [], None], ids=str)
def test_objects_of_other_types_are_refused(source: object) -> None:
    assert f"Data of the type {type(source).__name__} cannot be read" in refused(source)


def test_a_study_is_named_after_its_data(tmp_path: Path) -> None:
    (tmp_path / "reviews.v1").mkdir()
    for source, name in (
        (tmp_path / "reviews.v1", "reviews.v1"),
        ("folder/notes.csv.gz", "notes"),
        ("hub:owner/name:config@main", "name-config"),
    ):
        assert source_stem(source) == name
