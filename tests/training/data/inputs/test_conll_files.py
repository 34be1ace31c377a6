"""Reader of CoNLL files, and tables with entities from files of all formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.columns import Columns
from supermax.training.data.inputs.conll_files import looks_like_conll
from supermax.training.data.inputs.reading import read_rows

SENTENCES = """\
-DOCSTART- -X- -X- O

Anna NNP B-NP B-PER
Berg NNP I-NP I-PER
left VBD B-VP O

-DOCSTART- -X- -X- O

# id 7 domain=news
Oslo\tNNP\tB-LOC
is\tVBZ\tO
#\tX\tO
"""


def rows(path: Path, text: str | bytes) -> tuple[Any, BadRows]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    bad = BadRows()
    return read_rows(path, bad), bad


@pytest.mark.parametrize("name", ["train.conll", "train.bio", "train.txt", "train.tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sentences_are_rows(tmp_path: Path, name: str, end: str) -> None:
    table, bad = rows(tmp_path / name, SENTENCES.replace("\n", end))
    assert (table.form, table.name, bad.found) == ("CoNLL", "train", [])
    assert table.columns == ("tokens", "tags", "document")
    first, second = (row.values for row in table.rows)
    assert first == {
        "tokens": ["Anna", "Berg", "left"],
        "tags": ["B-PER", "I-PER", "O"],
        "document": "1",
    }
    assert second == {"tokens": ["Oslo", "is", "#"], "tags": ["B-LOC", "O", "O"], "document": "2"}
    assert [row.place.number for row in table.rows] == [3, 10]


def test_a_file_without_tags_is_to_be_predicted(tmp_path: Path) -> None:
    table, bad = rows(tmp_path / "new.conll", "Anna\nleft\n\nOslo\n")
    assert table.columns == ("tokens",)
    assert [row.values["tokens"] for row in table.rows] == [["Anna", "left"], ["Oslo"]]
    assert not bad.found


def test_lines_without_a_tag_or_in_another_encoding_are_named(tmp_path: Path) -> None:
    text = b"Anna B-PER\nleft O\n\nOslo B-LOC\nis\n\nBer\xffg B-LOC\nit O\n\nZ\xc3\xbcrich O\n"
    table, bad = rows(tmp_path / "bad.conll", text)
    assert [row.values["tokens"] for row in table.rows] == [["Anna", "left"], ["Zürich"]]
    assert [(each.place.number, each.what) for each in bad.found] == [
        (7, "this is not UTF-8 text"),
        (5, "the line has a token without a tag"),
    ]


def test_other_text_files_are_no_conll() -> None:
    assert looks_like_conll(b"Anna B-PER\n\nOslo B-LOC\n")
    assert not looks_like_conll(b"text\tlabel\nfirst text\tO\n\nsecond text\tB-x\n" * 3)
    assert not looks_like_conll(b"a\tO\n\nb\tO\n")  # no tag begins an entity
    assert not looks_like_conll(b"Anna B-PER\nOslo B-LOC\n")  # no blank line
    assert not looks_like_conll(b"")


def test_a_folder_of_splits(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"{part}.conll").write_text(f"{part} B-X\n\nit O\n")
    table = read_rows(tmp_path, BadRows())
    assert table.split == "split"
    assert [row.values["split"] for row in table.rows] == [
        *("validation",) * 2,
        *("test",) * 2,
        *("train",) * 2,
    ]


def test_a_mistake_in_the_columns_is_one_of_line_1(tmp_path: Path) -> None:
    from supermax.training.data.entities.tables import read_entities

    path = tmp_path / "a.conll"
    path.write_text("Anna B-PER\n\nOslo B-LOC\n")
    with pytest.raises(UserError, match=r"a.conll, line 1: there is no column 'ner'"):
        read_entities(path, Columns(text="tokens", label="ner"))
    (tmp_path / "a.jsonl").write_text(json.dumps({"tokens": ["Anna"]}) + "\n")
    with pytest.raises(UserError, match="no column 'tags'"):
        read_entities(tmp_path / "a.jsonl", Columns(text="tokens", label="tags"))
