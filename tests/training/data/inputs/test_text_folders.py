"""Folders: of text files by class, with and without splits, and of one file for each split."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.tasks.data_notices import weaknesses
from supermax.training.data.guessing import guess_file
from supermax.training.data.splits import read_splits
from supermax.training.data.tables import Columns, read_table
from tests.training.data.inputs.formats import GOOD, SECRET, write_csv, write_jsonl
from tests.users import as_somebody, common_folder

COLUMNS = Columns("text", label="label", id="id")


def classes(folder: Path, count: int = 4, names: tuple[str, ...] = ("neg", "pos")) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            text = f"{folder.name} {name} {SECRET} {i}\nsecond line\n"
            (folder / name / f"{i}.txt").write_text(text)
    return folder


def refused(folder: Path, **options: str) -> str:
    with pytest.raises(UserError) as caught:
        read_table(folder, COLUMNS, **options)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_folders_are_classes(tmp_path: Path) -> None:
    folder = classes(tmp_path / "reviews")
    (folder / ".DS_Store").write_bytes(b"\0\0")
    (folder / "pos" / ".hidden").write_bytes(b"\0\0")
    (folder / "README.md").write_text("about")
    os.mkfifo(folder / "pos" / "pipe.txt")
    (folder / "pos" / "gone.txt").symlink_to("nowhere")
    corpus = read_table(folder, COLUMNS)
    assert corpus.name == "reviews"
    assert corpus.label_names == ("neg", "pos")
    assert [e.id for e in corpus.classes][:2] == ["neg/0.txt", "neg/1.txt"]
    assert corpus.classes[0].text == f"reviews neg {SECRET} 0\nsecond line\n"
    guessed = guess_file(folder)
    roles = {guess.role: guess.column for guess in guessed.columns}
    assert roles == {"text": "text", "label": "label", "id": "id"}
    assert (guessed.form, guessed.labels) == ("folder of text files", ("neg", "pos"))


def test_folders_train_and_test_are_splits(tmp_path: Path) -> None:
    classes(tmp_path / "reviews" / "train", 6, ("neg", "pos", "unsup"))
    classes(tmp_path / "reviews" / "test")
    splits = read_splits(tmp_path / "reviews", COLUMNS)
    assert [len(part.classes) for part in splits.parts] == [12, 0, 8]
    assert splits.train.label_names == ("neg", "pos")  # unsup is no class
    assert "6 rows of the train split" in "\n".join(weaknesses(splits))


def test_splits_beside_classes_are_refused(tmp_path: Path) -> None:
    classes(tmp_path / "reviews" / "train")
    classes(tmp_path / "reviews", names=("pos",))
    assert "folders of splits (train) beside others (pos)" in refused(tmp_path / "reviews")


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    folder = classes(tmp_path / "reviews", names=("pos",))
    assert "reviews: all rows have the same label" in refused(folder)
    assert "holds only one class" in guess_file(folder).remarks[0]


def test_files_that_are_not_text_are_named(tmp_path: Path) -> None:
    folder = classes(tmp_path / "reviews", 20)
    (folder / "pos" / "scan.pdf").write_bytes(b"%PDF-1.7")
    (folder / "pos" / "image.txt").write_bytes(b"\x89PNG\0\0\0\0" * 20)
    (folder / "pos" / "empty.txt").write_bytes(b"")
    message = refused(folder)
    assert "reviews, file pos/scan.pdf: this is not a .txt file" in message
    assert "reviews, file pos/image.txt: this is not text that can be read" in message
    assert "reviews, file pos/empty.txt (id pos/empty.txt): the text is missing" in message
    assert read_table(folder, COLUMNS, on_bad="skip").skipped == 3


def test_more_files_of_a_kind_are_listed_by_name(tmp_path: Path) -> None:
    folder = classes(tmp_path / "reviews", 20)
    for i in range(6):
        (folder / "neg" / f"bad{i}.pdf").write_bytes(b"%PDF")
    message = refused(folder)
    assert "5 more like it (files neg/bad1.pdf, neg/bad2.pdf, neg/bad3.pdf, ...)" in message


def test_names_of_files_that_may_be_texts_are_not_shown(tmp_path: Path) -> None:
    folder = classes(tmp_path / "reviews")
    (folder / "pos" / f"I saw the {SECRET} today.txt").write_text(" ")
    assert "reviews, file number 9: the text is missing" in refused(folder)


def test_one_encoding_is_detected_for_all_files(tmp_path: Path) -> None:
    folder = classes(tmp_path / "reviews", 12)
    for i in range(12):
        text = f"the {SECRET} had a café crème and was happy {i}"
        (folder / "pos" / f"{i}.txt").write_bytes(text.encode("cp1252"))
    (folder / "neg" / "utf8.txt").write_text("déjà vu", encoding="utf-8")
    (folder / "neg" / "utf16.txt").write_text("déjà vu", encoding="utf-16")
    corpus = read_table(folder, COLUMNS)
    assert corpus.detected == "cp1252"
    assert guess_file(folder).encoding == "cp1252"
    # The settings that `init` writes name the encoding.
    for found in (corpus, read_table(folder, COLUMNS, encoding="cp1252", on_bad="skip")):
        texts = {e.id: e.text for e in found.classes}
        assert "café crème" in texts["pos/0.txt"]
        assert texts["neg/utf8.txt"] == "déjà vu"
    assert {e.id: e.text for e in corpus.classes}["neg/utf16.txt"] == "déjà vu"


def test_files_of_splits_may_have_encodings_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "reviews").mkdir()
    rows = [{**row, "text": f"{row['text']}, déjà vu"} for row in GOOD]
    for part, encoding in (("train", "cp1252"), ("test", "utf-8")):
        text = write_csv(tmp_path, rows).read_text(encoding="utf-8")
        (tmp_path / "reviews" / f"{part}.csv").write_bytes(text.encode(encoding))
    columns = Columns("text", label="label")
    guessed = guess_file(tmp_path / "reviews")
    assert guessed.encoding == "utf-8"
    assert "train.csv is not UTF-8. It is read as cp1252." in guessed.remarks
    splits = read_splits(tmp_path / "reviews", columns)
    for part in (splits.train, splits.test):
        assert all(e.text.endswith("déjà vu") for e in part.classes)
    assert "train.csv is not UTF-8" in "\n".join(weaknesses(splits))


def test_a_folder_of_one_file_for_each_split(tmp_path: Path) -> None:
    folder = tmp_path / "reviews"
    folder.mkdir()
    write_csv(tmp_path, GOOD).rename(folder / "train.csv")
    more = [{**row, "id": f"{row['id']}x", "text": f"{row['text']} again"} for row in GOOD]
    write_jsonl(tmp_path, more[:6]).rename(folder / "validation-00000-of-00002.jsonl")
    write_jsonl(tmp_path, more[6:]).rename(folder / "validation-00001-of-00002.jsonl")
    (folder / "notes.csv").write_text("not,a,split\n")
    splits = read_splits(folder, COLUMNS)
    assert [len(part.classes) for part in splits.parts] == [12, 12, 0]
    rows = (folder / "train.csv").read_text().replace("neg", "", 1)
    (folder / "train.csv").write_text(rows.replace(f"{SECRET} went out on day 3", ""))
    assert "train.csv, line 5 (id r3): the text is missing" in refused(folder)


def test_folders_without_data_say_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "neither a folder of text files for each class" in refused(tmp_path / "empty")
    (tmp_path / "hollow" / "pos").mkdir(parents=True)
    (tmp_path / "hollow" / "pos" / "scan.pdf").write_bytes(b"%PDF")
    assert "not a folder of data" in refused(tmp_path / "hollow")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    (tmp_path / "flat" / "train" / "1.txt").write_text("a text")
    assert "no text files in folders of classes, such as" in refused(tmp_path / "flat")


@pytest.mark.parametrize("hidden", ["", "pos", "pos/2.txt"])
def test_what_this_user_may_not_read_is_named(hidden: str) -> None:
    with common_folder() as place:
        folder = classes(place / "reviews")
        folder.chmod(0o755)
        for path in folder.rglob("*"):
            path.chmod(0o755)
        (folder / hidden).chmod(0)
        said = as_somebody(lambda: refused(folder))
        (folder / hidden).chmod(0o755)
    assert said.endswith(f"{folder / hidden} cannot be read: Permission denied.")


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    """They may be the same rows in two formats, which would all be read twice."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    write_csv(tmp_path, GOOD).rename(folder / "train.csv")
    write_jsonl(tmp_path, GOOD).rename(folder / "train.jsonl")
    assert "has several files of train, train.csv and train.jsonl, which" in refused(folder)
    (folder / "train.jsonl").unlink()
    assert len(read_table(folder, COLUMNS).classes) == len(GOOD)
