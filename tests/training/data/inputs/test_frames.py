"""Data frames: missing values, types of their own, and frames that cannot be used."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.inputs.cells import cell_of, with_names
from supermax.training.data.inputs.reading import read_rows
from supermax.training.data.tables import Columns, read_table

pandas = pytest.importorskip("pandas")


def values(frame: Any, column: str) -> list[Any]:
    return [row.values[column] for row in read_rows(frame, BadRows()).rows]


def test_missing_values_are_none() -> None:
    frame = pandas.DataFrame(
        {
            "float": [1.5, float("nan")],
            "integer": pandas.array([1, None], dtype="Int64"),
            "time": [pandas.Timestamp("2026-01-02"), pandas.NaT],
            "category": pandas.Categorical(["a", None]),
        }
    )
    assert values(frame, "float") == [1.5, None]
    assert values(frame, "integer") == [1, None]
    assert values(frame, "time") == ["2026-01-02T00:00:00", None]
    assert values(frame, "category") == ["a", None]


def test_labels_of_a_column_with_gaps_are_whole_numbers() -> None:
    """pandas turns 0 and 1 into 0.0 and 1.0 there."""
    frame = pandas.DataFrame({"t": ["one", "two", "three"], "y": [0, 1, None]})
    corpus = read_table(frame, Columns("t", label="y"))
    assert corpus.label_names == ("0", "1")
    assert corpus.unlabelled[0].rows == 1


def test_rows_are_named_by_position_and_not_by_index() -> None:
    frame = pandas.DataFrame({"t": ["one", None], "y": ["a", "b"]}, index=[7, 8])
    with pytest.raises(UserError, match="frame, row index 1: the text is missing"):
        read_table(frame, Columns("t", label="y"))


def test_mixed_types_are_named() -> None:
    texts = ["a text", 5, ["a list"], {"an": "object"}, b"bytes", object()]
    frame = pandas.DataFrame({"t": pandas.Series(texts, dtype=object), "y": list("ababab")})
    with pytest.raises(UserError) as caught:
        read_table(frame, Columns("t", label="y"))
    message = str(caught.value)
    assert "row index 2: the text is a list or an object; 1 more like it (row index 3)" in message
    assert "row index 4: the text is a value of the type bytes" in message
    assert "row index 5: the text is a value of the type object" in message
    kept = read_table(frame, Columns("t", label="y"), on_bad="skip")
    assert [e.text for e in kept.classes] == ["a text", "5"]


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pandas.DataFrame([["one", "a", "b"]], columns=["t", "y", "y"])
    with pytest.raises(UserError, match="frame: the column 'y' occurs twice"):
        read_table(frame, Columns("t", label="y"))


def test_a_column_is_not_a_frame() -> None:
    with pytest.raises(UserError, match="This is a Series of pandas: give a DataFrame"):
        read_rows(pandas.Series(["one"]), BadRows())


def test_a_lazy_frame_is_collected() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.LazyFrame({"t": ["one", "two"], "tags": [["a"], ["b", "c"]]})
    assert values(frame, "tags") == [["a"], ["b", "c"]]


def test_values_of_other_libraries() -> None:
    numpy = pytest.importorskip("numpy")
    assert cell_of(numpy.int64(3)) == 3
    assert cell_of(numpy.array(["a", "b"])) == ["a", "b"]
    assert cell_of(numpy.float32("nan")) is None
    assert cell_of(numpy.bool_(True)) is True
    assert cell_of(decimal.Decimal("1.10")) == "1.10"
    assert cell_of(datetime.date(2026, 1, 2)) == "2026-01-02"
    assert cell_of({1: (None, float("nan"))}) == {"1": [None, None]}


def test_numbers_of_classes_become_names() -> None:
    assert with_names([0, 1, -1], ["a", "b"]) == ["a", "b", None]
    assert with_names(2, ["a", "b"]) == 2
    assert with_names(None, ["a"]) is None
    assert with_names(True, ["a", "b"]) is True


def test_missing_decimals_are_missing() -> None:
    labels = [decimal.Decimal(text) for text in ("1.5", "NaN", "2.5")]
    frame = pandas.DataFrame({"text": ["one text", "two texts", "three"], "label": labels})
    corpus = read_table(frame, Columns("text", label="label"), numeric=True)
    assert [e.value for e in corpus.numbers] == [1.5, 2.5]
    assert corpus.unlabelled[0].rows == 1
