"""Encodings: detected where the bytes are clear, and refused with the byte's place where not."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.training.data.encodings import first_wrong_byte
from supermax.training.data.files import read_contents
from supermax.training.data.tables import Columns, read_table

TEXT = "text,label\n" + "".join(f"the café was good on day {i},yes\n" for i in range(20))


def written(folder: Path, data: bytes, name: str = "notes.csv") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (TEXT.encode(), "utf-8"),
        (codecs.BOM_UTF8 + TEXT.encode(), "utf-8"),
        (TEXT.encode("utf-16"), "utf-16"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "utf-16"),
        (TEXT.encode("utf-16-le"), "utf-16-le"),
        (TEXT.encode("utf-16-be"), "utf-16-be"),
        (TEXT.encode("utf-32"), "utf-32"),
        (TEXT.encode("cp1252"), "cp1252"),
    ],
    ids=["utf-8", "utf-8-sig", "utf-16", "utf-16-be-sig", "le", "be", "utf-32", "cp1252"],
)
def test_encodings_are_detected(tmp_path: Path, data: bytes, encoding: str) -> None:
    found = read_contents(written(tmp_path, data))
    assert (found.encoding, found.data.decode()) == (encoding, TEXT)


def test_the_corpus_names_a_detected_encoding(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.replace("9,yes", "9,no").encode("cp1252"))
    assert read_table(path, Columns("text", label="label")).detected == "cp1252"
    assert read_table(path, Columns("text", label="label"), encoding="cp1252").detected == ""


def test_bytes_that_fit_no_encoding_are_named_by_their_place(tmp_path: Path) -> None:
    """Every line has a byte that is not UTF-8; no common encoding has all of them."""
    lines = [b"a \xff\x81\xfe day\x9d\x8f\x90 went by %d,yes" % i for i in range(20)]
    path = written(tmp_path, b"\n".join([b"text,label", *lines]))
    with pytest.raises(UserError) as caught:
        read_table(path, Columns("text", label="label"))
    what = "notes.csv, line 2: this is not UTF-8 text (byte 3 of the line, 0xff); 19 more"
    assert what in str(caught.value)


def test_a_damaged_line_of_utf8_costs_this_line(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.encode().replace(b"caf\xc3\xa9 was good on day 7", b"caf\xe9"))
    with pytest.raises(UserError, match=r"line 9: this is not UTF-8 text \(byte 8 .* 0xe9\)"):
        read_table(path, Columns("text"))


@pytest.mark.parametrize(
    ("encoding", "data", "place"),
    [
        ("ascii", b"text\none\ncaf\xe9\n", "byte 13 of the file (0xe9, in line 3)"),
        ("cp1252", b"text\n\x81\n", "byte 6 of the file (0x81, in line 2)"),
        ("utf-16-le", "text\none\n".encode("utf-16-le")[:-1], "in line 2)"),
    ],
)
def test_the_byte_that_a_given_encoding_lacks_is_named(
    tmp_path: Path, encoding: str, data: bytes, place: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_contents(written(tmp_path, data), encoding)
    assert f"is not {encoding} text: byte" in str(caught.value)
    assert place in str(caught.value)


def test_a_truncated_file_in_utf16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not utf-16 text"):
        read_contents(written(tmp_path, TEXT.encode("utf-16")[:-1]))


def test_bytes_of_a_line_are_counted_from_one() -> None:
    assert first_wrong_byte("é".encode()) is None
    assert first_wrong_byte(b"\xff") == " (byte 1 of the line, 0xff)"
    assert first_wrong_byte("é".encode() + b"x\xc3") == " (byte 4 of the line, 0xc3)"
