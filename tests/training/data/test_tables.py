"""Any CSV or JSONL is read by a mapping of its columns, and every bad row is named."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax import UserError
from supermax.tasks.data_notices import weaknesses
from supermax.training.data.answers import evidence
from supermax.training.data.spans import find_span, merged
from supermax.training.data.splits import read_splits
from supermax.training.data.tables import Columns, read_table

SECRET = "zanzibarquux"  # stands in every text, and in no message
FULL = Columns("body", "ask", "kind", "key", "thread", "proof", "at")
ROW = {"body": f"one {SECRET} two", "ask": "which?", "kind": "a", "key": "k", "thread": "t"}


def csv_file(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refused(path: Path, columns: Columns, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_table(path, columns, **options)
    message = str(caught.value)
    assert SECRET not in message
    return message


def test_classes_from_csv(tmp_path: Path) -> None:
    text = "\ufeffkey,body,kind\r\nx,first text,b\r\ny,second text,a\r\n"
    corpus = read_table(csv_file(tmp_path / "notes.csv", text), Columns("body", label="kind"))
    assert corpus.name == "notes"
    assert corpus.label_names == ("a", "b")
    assert [e.label for e in corpus.classes] == [1, 0]
    assert [e.id for e in corpus.classes] == ["notes.csv:2", "notes.csv:3"]
    assert corpus.spans == ()
    assert corpus.skipped == 0


def test_classes_and_spans_from_one_row(tmp_path: Path) -> None:
    rows = [{**ROW, "proof": "two", "at": 17}, {**ROW, "key": "l", "kind": "b", "proof": ""}]
    corpus = read_table(jsonl(tmp_path / "both.jsonl", *rows), FULL, labels=["b", "a"])
    assert corpus.classes == corpus.spans
    first, second = corpus.classes
    assert (first.id, first.group, first.question, first.label) == ("k", "t", "which?", 1)
    assert first.spans == ((17, 20),)
    assert second.spans == ()


def test_a_list_of_answers(tmp_path: Path) -> None:
    row = {"t": "one two three four", "a": ["one", "four"]}
    corpus = read_table(jsonl(tmp_path / "many.jsonl", row), Columns("t", answer="a"))
    assert corpus.spans[0].spans == ((0, 3), (14, 18))
    assert corpus.classes == ()


def test_answers_that_overlap_are_alternatives(tmp_path: Path) -> None:
    """SQuAD's annotators give such answers: none is lost, and none is merged with another."""
    answers = ["Denver Broncos", "The Denver Broncos", "Broncos", "won", "Denver Broncos"]
    row = {"t": "The Denver Broncos won.", "a": answers}
    corpus = read_table(jsonl(tmp_path / "many.jsonl", row), Columns("t", answer="a"))
    assert corpus.spans[0].spans == ((0, 18), (4, 18), (11, 18), (19, 22))


def test_rows_with_nothing_known_are_there_to_be_predicted(tmp_path: Path) -> None:
    corpus = read_table(csv_file(tmp_path / "new.csv", "body\nsome text\n"), Columns("body"))
    assert corpus.classes == corpus.spans
    assert (corpus.classes[0].label, corpus.classes[0].spans) == (None, None)


def test_rows_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"t": "one", "y": "a"}, {"t": "two"}, {"t": "three", "y": None}, {"t": "4", "y": "b"}]
    path = jsonl(tmp_path / "some.jsonl", *rows, {"t": SECRET, "y": " "})
    for labels in (None, ["a", "b"]):
        corpus = read_table(path, Columns("t", label="y"), labels=labels)
        assert [e.text for e in corpus.classes] == ["one", "4"]
        assert [(u.file, u.rows) for u in corpus.unlabelled] == [("some.jsonl", 3)]
        assert corpus.skipped == 0
    # All of them are rows to predict.
    assert len(read_table(path, Columns("t")).classes) == 5


def test_a_file_without_labels_cannot_be_learnt_from(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "none.csv", "t,y\none,\ntwo,\n")
    for labels in (None, ["a", "b"]):
        message = refused(path, Columns("t", label="y"), labels=labels)
        assert "none.csv: no row has a label in the column 'y'" in message
    path = csv_file(tmp_path / "one.csv", "t,y\none,a\ntwo,\n")
    for labels in (None, ["a", "b"]):
        assert "the same label" in refused(path, Columns("t", label="y"), labels=labels)


def test_rows_of_a_split_without_labels_are_counted_there(tmp_path: Path) -> None:
    text = "t,y,s\none,a,train\ntwo,b,train\nthree,b,val\nfour,,test\nfive,,test\nsix,,train\n"
    path = csv_file(tmp_path / "s.csv", text)
    splits = read_splits(path, Columns("t", label="y", split="s"))
    assert [len(part.classes) for part in splits.parts] == [2, 1, 0]
    said = "\n".join(weaknesses(splits))
    assert "2 rows of the test split in s.csv without a label cannot be scored" in said
    assert "1 row of the train split in s.csv without a label is left out" in said
    assert "supermax predict" in said


def test_numbers_are_labels_in_their_order(tmp_path: Path) -> None:
    rows = [{"t": f"text {n}", "y": n, "n": n} for n in (10, 9, 9.0, -1)]
    path = jsonl(tmp_path / "numbers.jsonl", *rows)
    corpus = read_table(path, Columns("t", label="y", id=None))
    assert corpus.label_names == ("-1", "9", "10")
    assert [e.label for e in corpus.classes] == [2, 1, 1, 0]


def test_rows_with_the_same_text_are_a_group(tmp_path: Path) -> None:
    text = "body;kind\nsame;a\nother;b\nsame;b\n"
    corpus = read_table(csv_file(tmp_path / "s.csv", text), Columns("body", label="kind"))
    first, second, third = (e.group for e in corpus.classes)
    assert first == third != second
    assert "same" not in first


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    text = 'key,body\n\na,"one\ntwo\r\nthree"\nb,\nc,"x\n""y"""\nd,  \n'
    message = refused(csv_file(tmp_path / "f.csv", text), Columns("body", id="key"))
    assert "f.csv, line 6 (id b): the text is missing" in message
    assert "1 more like it (line 9)" in message
    assert "2 mistakes in 2 rows" in message


BAD_CSV = (
    b"key,body,kind,proof,at\n"
    b"ok,one SECRET two,a,two,\n"
    b"notext,,a,,\n"
    b"wronglabel,SECRET,q SECRET,,\n"
    b"outside,SECRET,a,SECRET,99\n"
    b"elsewhere,SECRET SECRET,a,SECRET,1\n"
    b"notin,SECRET,a,SECRET other,\n"
    b"notnumber,SECRET,a,SECRET,SECRET\n"
    b"ok,SECRET,b,,\n"
    b"short,SECRET\n"
    b"latin,SECRET \xe9,a,,\n"
    b"accents,SECRET \xc3\xa9,a,,\n"
    b"accented,SECRET \xc3\xa9\xc3\xa9,b,,\n"
    b'quoted,"SECRET" x,a,,\n'
    b",SECRET,a,,\n"
    b"fine,one SECRET more,b,,\n"
)
BAD_LINES = {
    3: "(id notext): the text is missing",
    4: "(id wronglabel): the label is none of a, b",
    5: "(id outside): the answer's span is outside the text",
    6: "(id elsewhere): the text at the answer's start is not the answer",
    7: "(id notin): the answer is not in the text",
    8: "(id notnumber): the answer's start is not a whole number",
    9: "(id ok): the id occurs twice (first in line 2)",
    10: ": the row and the header have different numbers of fields (2, not 5)",
    11: f": this is not UTF-8 text (byte {len(SECRET) + 8} of the line, 0xe9)",
    14: ": a quote is out of place in the row that begins here",
    15: ": the id is missing",
}


def test_every_bad_row_is_named_at_once(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "bad.csv", BAD_CSV.replace(b"SECRET", SECRET.encode()))
    columns = Columns("body", label="kind", id="key", answer="proof", answer_start="at")
    message = refused(path, columns, labels=["a", "b"])
    for line, what in BAD_LINES.items():
        assert f"bad.csv, line {line}" in message
        assert f"line {line} {what}".replace(" :", ":") in message
    assert f"{len(BAD_LINES)} mistakes in {len(BAD_LINES)} rows" in message
    assert 'on_bad="skip"' in message
    corpus = read_table(path, columns, labels=["a", "b"], on_bad="skip")
    assert [e.id for e in corpus.classes] == ["ok", "accents", "accented", "fine"]
    assert corpus.skipped == len(BAD_LINES)


def test_bad_lines_of_jsonl(tmp_path: Path) -> None:
    lines = [
        json.dumps({"t": SECRET, "y": "a"}).encode(),
        b'{"t": "' + SECRET.encode() + b'", "y": }',
        b'["' + SECRET.encode() + b'"]',
        b'{"t": "\xff' + SECRET.encode() + b'", "y": "a"}',
        b'{"t": {"' + SECRET.encode() + b'": 1}, "y": "a"}',
        b'{"t": "\\ud800' + SECRET.encode() + b'", "y": "a"}',
        b'{"y": "b"}',
        b'{"t": NaN, "y": "b"}',
        b"",
        json.dumps({"t": f"{SECRET} more", "y": "b"}).encode(),
    ]
    path = csv_file(tmp_path / "bad.jsonl", b"\n".join(lines))
    message = refused(path, Columns("t", label="y"))
    for line, what in {
        2: "this is not JSON (column ",
        3: "this is not a JSON object",
        4: "this is not UTF-8 text (byte 8 of the line, 0xff); 1 more like it (line 6)",
        5: "the text is a list or an object",
        7: "the text is missing",
        8: "NaN is not JSON; a missing value is null",
    }.items():
        assert f"bad.jsonl, line {line}: {what}" in message
    corpus = read_table(path, Columns("t", label="y"), on_bad="skip")
    assert (len(corpus.classes), corpus.skipped) == (2, 7)


def test_a_long_list_is_cut_and_no_kind_hides_another(tmp_path: Path) -> None:
    text = "key,body,kind\n" + "".join(f"k{i},,a\n" for i in range(500)) + f"z,{SECRET},x\n"
    columns = Columns("body", label="kind", id="key")
    message = refused(csv_file(tmp_path / "many.csv", text), columns, labels=["a", "b"])
    assert len(message.splitlines()) == 5
    assert "501 mistakes in 501 rows" in message
    assert "(id k0): the text is missing; 499 more like it (lines 3, 4, 5, ...)" in message
    assert "(id z): the label is none of a, b" in message


def test_missing_columns_are_all_named_with_the_nearest(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "c.csv", "post_text,labels\nsome,a\n")
    message = refused(path, Columns("post_txt", label="label"), on_bad="skip")
    assert "no column 'post_txt'; did you mean 'post_text'?" in message
    assert "no column 'label'; did you mean 'labels'?" in message


@pytest.mark.parametrize("text", ["my body", "a body of so many words that it is none"])
def test_a_file_without_a_header_gives_no_text_away(tmp_path: Path, text: str) -> None:
    path = csv_file(tmp_path / "c.csv", f"{text} {SECRET},a\nmore {SECRET},b\n")
    said = refused(path, Columns("body", label="kind"))
    assert "no column 'body'" in said or "has no header" in said


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("empty.csv", b"", "is empty"),
        ("blank.jsonl", b"\xef\xbb\xbf \n\n", "is empty"),
        ("header.csv", b"body,kind\n", "header.csv has no rows"),
        ("open.csv", f'body,kind\n"{SECRET},a\nmore,b\n'.encode(), "never closed"),
        ("twice.csv", b"body,kind,kind\nx,a,b\n", "the column 'kind' occurs twice"),
        ("one.csv", b"body,kind\nx,a\ny,a\n", "the same label"),
        ("table.xlsx", b"PK", "neither CSV nor JSONL"),
        ("none.csv", b"body,kind\n,a\n,b\n", "No good row is left"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    path = csv_file(tmp_path / name, data)
    assert what in refused(path, Columns("body", label="kind"), on_bad="skip")


def test_texts_mapped_as_names_are_refused(tmp_path: Path) -> None:
    text = "body,kind\n" + "".join(f"{SECRET} {i},a\n" for i in range(50))
    path = csv_file(tmp_path / "t.csv", text)
    for wrong in (Columns("body", id="body"), Columns("body", label="body")):
        assert "mapped as text and as" in refused(path, wrong)
    assert "no classes" in refused(path, Columns("kind", label="body"))
    skipped = refused(path, Columns("kind", id="body", question="no"))
    assert "no column 'no'" in skipped


def test_wrong_arguments(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "t.csv", "body,kind\nx,a\ny,b\n")
    both = refused(path, Columns("body", answer_start="at"), labels=["a", "a"])
    assert "answer_start is mapped without answer" in both
    assert "the same one twice" in both
    assert "not 'skp'" in refused(path, Columns("body"), on_bad="skp")
    assert "did you mean 't.csv'?" in refused(tmp_path / "tt.csv", Columns("body"))


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1), st.text(), st.text())
def test_a_span_is_its_answer(answer: str, before: str, after: str) -> None:
    text = before + answer + after
    spans, mistakes = evidence(text, answer, None)
    given_start, wrong = evidence(text, answer, len(before))
    assert mistakes == wrong == []
    if answer.strip():
        assert [text[start:end] for start, end in spans] == [answer]
        assert given_start == ((len(before), len(before) + len(answer)),)
    else:
        assert spans == given_start == ()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["a", "b.", "(c)"]), min_size=1), st.text(), st.text())
def test_all_white_space_is_equal(words: list[str], before: str, after: str) -> None:
    text = before + "\n\t ".join(words) + after
    span = find_span(text, " ".join(words))
    assert span is not None
    assert text[slice(*span)].split() == words


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10))), st.text("x ", min_size=40))
def test_merged_spans_cover_the_same_and_do_not_touch(
    pieces: list[tuple[int, int]], text: str
) -> None:
    spans = merged([(start, start + length) for start, length in pieces], text)
    inside = {i for start, length in pieces for i in range(start, start + length)}
    covered = {i for start, end in spans for i in range(start, end)}
    assert inside <= covered
    assert not "".join(text[i] for i in covered - inside).strip()
    for (_, end), (start, _) in pairwise(spans):
        assert text[end:start].strip()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_csv_round_trips_with_true_lines(rows: list[tuple[str, str]]) -> None:
    kept = [(f"a{a}".replace("\x00", ""), f"b{b}".replace("\x00", "")) for a, b in rows]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "r.csv"
        with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
            csv.writer(file).writerows([("body", "ask"), *kept])
        corpus = read_table(path, Columns("body", "ask"))
        written = path.read_bytes()
    back = [(e.text, e.question) for e in corpus.classes]
    assert back == [(_replaced(a), _replaced(b)) for a, b in kept]
    lines = written.splitlines()
    for example in corpus.classes:
        first = example.text.splitlines()[0] if example.text else ""
        line = lines[int(example.id.rsplit(":", 1)[1]) - 1].decode()
        assert line.lstrip('"')[:1] == first[:1] == "a"


def _replaced(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
