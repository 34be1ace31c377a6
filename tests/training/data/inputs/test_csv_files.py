"""The separator of CSV is detected from its header and its first records."""

from __future__ import annotations

from pathlib import Path

import pytest

from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.csv_files import SEPARATORS, separator_of
from supermax.training.data.tables import Columns, read_table
from tests.training.data.inputs.formats import GOOD, SECRET, write_csv


@pytest.mark.parametrize("separator", SEPARATORS)
def test_each_separator_is_detected(tmp_path: Path, separator: str) -> None:
    rows = [{**row, "text": f"{row['text']}, twice; or | once"} for row in GOOD]
    path = write_csv(tmp_path, rows, separator)
    assert guess_file(path).separator == separator
    corpus = read_table(path, Columns("text", label="label", id="id"))
    assert [e.text for e in corpus.classes] == [row["text"] for row in rows]


def test_marks_within_values_do_not_separate_columns() -> None:
    """Labels such as joy|anger: the header tells them from columns."""
    records = [f"the {SECRET} went out,joy|anger" for _ in range(20)]
    assert separator_of("\n".join(["text,labels", *records])) == ","


def test_one_column_has_no_separator(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("text\none text\nanother text\n")
    assert [e.text for e in read_table(path, Columns("text")).classes] == [
        "one text",
        "another text",
    ]
