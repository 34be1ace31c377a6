"""The two files of ReDSM5 are read as documented, and every bad row is named."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from supermax import UserError
from supermax.training.data.redsm5 import ANNOTATIONS, POSTS, SYMPTOMS, read_redsm5

SECRET = "zanzibarquux"  # stands in every text, and in no message
HEADER = ["post_id", "sentence_id", "sentence_text", "DSM5_symptom", "status", "explanation"]
FIRST = f"I slept badly.  {SECRET} again.\nI lay awake."
TEXTS = [["p1", FIRST], ["p2", f"All is well, {SECRET}."]]
GOOD = [
    ["p1", "s0", "I slept badly.", "SLEEP_ISSUES", "1", SECRET],
    ["p1", "s2", "I lay awake.", "SLEEP_ISSUES", "1", SECRET],
    ["p1", "s1", f"{SECRET}\nagain.", "FATIGUE", "0", SECRET],
    ["p2", "s0", f"All is well, {SECRET}.", "SLEEP_ISSUES", "0", ""],
]


def written(folder: Path, posts: list[list[str]], annotations: list[list[str]]) -> Path:
    tables = ((POSTS, [["post_id", "text"], *posts]), (ANNOTATIONS, [HEADER, *annotations]))
    for name, rows in tables:
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    return folder


def refused(folder: Path, **options: str) -> str:
    with pytest.raises(UserError) as caught:
        read_redsm5(folder, **options)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_classes_are_the_annotations(tmp_path: Path) -> None:
    corpus = read_redsm5(written(tmp_path, TEXTS, GOOD))
    assert corpus.label_names == ("absent", "present")
    assert [(e.id, e.group, e.label) for e in corpus.classes] == [
        ("p1/s0/SLEEP_ISSUES", "p1", 1),
        ("p1/s2/SLEEP_ISSUES", "p1", 1),
        ("p1/s1/FATIGUE", "p1", 0),
        ("p2/s0/SLEEP_ISSUES", "p2", 0),
    ]
    assert corpus.classes[0].text == "I slept badly."
    assert corpus.classes[0].question == SYMPTOMS["SLEEP_ISSUES"]
    assert corpus.classes[0].spans is None


def test_spans_are_the_sentences_that_show_a_symptom(tmp_path: Path) -> None:
    corpus = read_redsm5(written(tmp_path, TEXTS, GOOD))
    assert [e.id for e in corpus.spans] == ["p1/SLEEP_ISSUES", "p1/FATIGUE", "p2/SLEEP_ISSUES"]
    shown, fatigue, well = corpus.spans
    assert shown.text == FIRST
    assert [FIRST[a:b] for a, b in shown.spans or ()] == ["I slept badly.", "I lay awake."]
    assert fatigue.spans == well.spans == ()
    assert shown.label is None


def test_neighbouring_sentences_are_one_span(tmp_path: Path) -> None:
    middle = ["p1", "s1", f"{SECRET} again.", "SLEEP_ISSUES", "1", ""]
    corpus = read_redsm5(written(tmp_path, TEXTS, [*GOOD, middle]))
    assert corpus.spans[0].spans == ((0, len(FIRST)),)


def test_every_bad_row_is_named_at_once(tmp_path: Path) -> None:
    posts = [*TEXTS, ["p1", SECRET], ["p3", " "], ["", SECRET]]
    bad = [
        ["p1", "s0", "I slept badly.", "SLEEP_ISSUE", "1", ""],
        ["p1", "s0", "I slept badly.", "FATIGUE", "2", ""],
        ["p9", "s0", SECRET, "FATIGUE", "1", ""],
        ["p2", "s7", f"{SECRET} elsewhere", "FATIGUE", "1", ""],
        ["p1", "s0", "I slept badly.", "SLEEP_ISSUES", "0", ""],
        ["p3", "s0", SECRET, "FATIGUE", "1", ""],
        ["p1", "s3", "", f"{SECRET} is no symptom", "", ""],
    ]
    message = refused(written(tmp_path, posts, [*GOOD, *bad]))
    for what in (
        f"{POSTS}, line 5 (id p1): the post occurs twice (first in line 2)",
        f"{POSTS}, line 6 (id p3): text is missing",
        f"{POSTS}, line 7: post_id is missing",
        "line 7 (id p1/s0/SLEEP_ISSUE): there is no symptom SLEEP_ISSUE; did you mean "
        "'SLEEP_ISSUES'?",
        "line 8 (id p1/s0/FATIGUE): status is neither 0 nor 1",
        f"line 9 (id p9/s0/FATIGUE): its post is not in {POSTS}",
        "line 10 (id p2/s7/FATIGUE): the sentence is not in its post",
        "line 11 (id p1/s0/SLEEP_ISSUES): the sentence is annotated twice for its symptom",
        "line 12 (id p3/s0/FATIGUE): its post has no text",
        "line 13: sentence_text is missing",
        "line 13: status is missing",
        "line 13: there is no symptom of that name",
    ):
        assert what in message
    corpus = read_redsm5(tmp_path, on_bad="skip")
    assert corpus.skipped == 10
    assert corpus.classes == read_redsm5(written(tmp_path, TEXTS, GOOD)).classes


def test_both_missing_files_are_named(tmp_path: Path) -> None:
    message = refused(tmp_path)
    assert POSTS in message
    assert ANNOTATIONS in message


def test_missing_columns_of_both_files_are_named(tmp_path: Path) -> None:
    (tmp_path / POSTS).write_text(f"id,body\np1,{SECRET}\n")
    (tmp_path / ANNOTATIONS).write_text(f"post_id,sentence_text,symptom\np1,{SECRET},x\n")
    message = refused(tmp_path, on_bad="skip")
    for column in ("text", "sentence_id", "status"):
        assert f"there is no column {column!r}" in message
    assert "there is no column 'DSM5_symptom'; did you mean 'symptom'?" in message


def test_the_symptoms_are_asked_in_different_words() -> None:
    assert len(SYMPTOMS) == len(set(SYMPTOMS.values())) == 10


def test_a_sentence_that_is_not_in_its_post_has_a_class_and_no_span(tmp_path: Path) -> None:
    paraphrased = ["p1", "s3", f"{SECRET} kept me up.", "FATIGUE", "1", ""]
    elsewhere = ["p9", "s0", f"{SECRET} far away.", "ANHEDONIA", "0", ""]
    written(tmp_path, TEXTS, [*GOOD, paraphrased, elsewhere])
    said = refused(tmp_path)
    assert "the sentence is not in its post" in said
    assert "The agent criteria needs no positions" in said
    corpus = read_redsm5(tmp_path, located=False)
    assert len(corpus.classes) == len(GOOD) + 2
    whole = read_redsm5(written(tmp_path, TEXTS, GOOD))
    assert corpus.spans == tuple(e for e in whole.spans if e.id != "p1/FATIGUE")
