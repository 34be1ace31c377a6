"""Data in memory is written once, under a name that follows from its content."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.training.data.inputs.stored import StoredTable, read_stored, stored
from supermax.training.data.places import FILE, INDEX, Place
from supermax.training.data.rows import Row, Rows
from supermax.training.data.tables import Columns, read_table


def table(*texts: object) -> Rows:
    rows = tuple(
        Row(Place("frame (train)", i, INDEX), {"text": text, "n": [1, None, "x"]})
        for i, text in enumerate(texts)
    )
    return Rows("my frame", ("text", "n"), rows, "pandas data frame", classes={"n": ("a",)})


def test_the_name_follows_from_the_content(tmp_path: Path) -> None:
    first, same, other = stored(table("one")), stored(table("one")), stored(table("two"))
    assert first == same
    assert first.name.startswith("my-frame-")
    assert first.name != other.name
    path = first.write(tmp_path / "data")
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    path.write_bytes(b"")  # an existing file is not written again
    assert first.write(tmp_path / "data").read_bytes() == b""


def test_places_and_files_come_back(tmp_path: Path) -> None:
    place = Place("reviews", 3, FILE, "pos/3.txt")
    rows = Rows("reviews", ("text",), (Row(place, {"text": "é\u2028\ud800"}),), split="text")
    assert read_stored(stored(rows).write(tmp_path)) == rows


def test_a_value_of_another_type_stays_a_mistake(tmp_path: Path) -> None:
    path = stored(table("one", b"two")).write(tmp_path)
    with pytest.raises(UserError, match=r"frame \(train\), row index 1: the text is a value of"):
        read_table(path, Columns("text"))


def damaged(data: bytes) -> list[bytes]:
    lines = gzip.decompress(data).splitlines()
    head = json.loads(lines[0])
    without = json.dumps({**head, "columns": ["text"]}).encode()
    return [
        data[:-9],
        b"text",
        gzip.compress(lines[0][:-5]),
        gzip.compress(b"\n".join([without, *lines[1:]])),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_a_damaged_file_is_refused(tmp_path: Path, kind: int) -> None:
    whole = stored(table("one", "two"))
    path = StoredTable(whole.name, damaged(whole.data)[kind]).write(tmp_path)
    with pytest.raises(UserError, match=r"is damaged. Delete it, and run the program again"):
        read_stored(path)
