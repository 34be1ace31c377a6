"""`supermax init`: columns are guessed, and no existing file is overwritten."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.search.data import data_of
from supermax.study import Study
from supermax.training.data.guessing import guess, guess_file
from supermax.training.data.redsm5 import ANNOTATIONS, POSTS
from supermax.training.data.synthetic import synthetic
from tests.training.redsm5_files import write_redsm5
from tests.ui.cli.helping import inside, sm, table


def roles(cells: dict[str, list[str]]) -> dict[str, str]:
    return {found.role: found.column for found in guess(cells, "mine.csv").columns}


def test_columns_with_neutral_names_are_guessed_from_their_values() -> None:
    long = [f"on day {i} somebody wrote a long and quiet sentence" for i in range(12)]
    cells = {
        "a": [str(i) for i in range(12)],
        "b": long,
        "c": ["Is it long?"] * 12,
        "d": ["x", "y"] * 6,
        "e": ["a long and quiet" if i % 2 else "" for i in range(12)],
    }
    found = guess(cells, "mine.csv")
    assert roles(cells) == {"text": "b", "answer": "e", "question": "c", "label": "d"}
    assert found.unused == ("a",)
    assert found.agent == "share"
    assert found.labels == ("x", "y")


def test_column_names_are_trusted_where_the_values_agree() -> None:
    words = [f"some words about number {i}" for i in range(8)]
    cells = {
        "id": [f"r{i}" for i in range(8)],
        "patient_id": ["p1", "p2"] * 4,
        "Text": words,
        "fold": ["train", "dev", "test", "train"] * 2,
        "final_label": ["0", "1"] * 4,
    }
    assert roles(cells) == {
        "split": "fold",
        "id": "id",
        "group": "patient_id",
        "text": "Text",
        "label": "final_label",
    }
    twice = {**cells, "id": ["r1"] * 8, "fold": ["a"] * 8}
    assert "id" not in roles(twice)
    assert "split" not in roles(twice)


def test_a_table_without_texts_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no column that holds texts"):
        guess({"a": ["1", "2"], "b": ["x", "y"]}, "mine.csv")


def test_the_guess_is_shown_without_texts_of_the_data(tmp_path: Path) -> None:
    table(tmp_path / "my notes.csv")
    with inside(tmp_path):
        said = sm("init", "my notes.csv")
        written = (tmp_path / "my notes.yaml").read_text()
    assert "supermax tune 'my notes.yaml'" in said
    assert "name: my-notes " in written
    for words in ("text", "what was said", "asked", "verdict", "patient", "criteria"):
        assert words in said
    for text in (said, written):
        assert "awake" not in text
        assert "stone" not in text
    assert guess_file(tmp_path / "my notes.csv").role("text") == "what was said"


def test_no_existing_file_is_overwritten(tmp_path: Path) -> None:
    with inside(tmp_path):
        sm("init", "joint")
        mine = (tmp_path / "joint.yaml").read_text() + "# mine\n"
        (tmp_path / "joint.yaml").write_text(mine)
        assert "exists already" in sm("init", "joint", code=2)
        assert (tmp_path / "joint.yaml").read_text() == mine
        sm("init", "joint", "--force")
        assert "# mine" not in (tmp_path / "joint.yaml").read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("critera",), "did you mean 'criteria'"),
        (("nowhere.csv",), "There is no file"),
        (("empty.csv",), "is empty"),
        (("picture.png",), "neither CSV nor JSONL"),
        (("criteria", "-o", "no/such/folder.yaml"), "cannot be written"),
        (("criteria", "--agent", "jiont"), "did you mean 'joint'"),
    ],
)
def test_an_unusable_target_is_a_user_error(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with inside(tmp_path):
        assert words in sm("init", *args, code=2)


def test_a_table_without_labels_is_reported_and_not_searched(tmp_path: Path) -> None:
    table(tmp_path / "notes.csv")
    rows = [line.rsplit(",", 1)[0] for line in (tmp_path / "notes.csv").read_text().splitlines()]
    (tmp_path / "notes.csv").write_text("\n".join(rows) + "\n")
    with inside(tmp_path):
        assert "No column looks like labels" in sm("init", "notes.csv")
        assert "learns from labels" in sm("tune", "notes.yaml", "--no-supervisor", code=2)


def test_a_few_rows_with_a_column_named_label_have_labels() -> None:
    cells = {"text": ["a b c", "d e f", "g h i"], "outcome": ["x", "y", "x"]}
    assert roles(cells)["label"] == "outcome"


def test_init_accepts_a_redsm5_folder_and_criteria_needs_no_positions(tmp_path: Path) -> None:
    write_redsm5(tmp_path / "corpus", synthetic(60, max_words=20))
    annotations = tmp_path / "corpus" / ANNOTATIONS
    with annotations.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    place = header.index("sentence_text")
    with annotations.open("w", newline="") as file:
        csv.writer(file).writerows(
            [header, *([*r[:place], f"In short: {r[place]}", *r[place + 1 :]] for r in rows)]
        )
    with inside(tmp_path):
        assert "Written to corpus.yaml" in sm("init", "corpus")
        splits = data_of(Study.from_config("corpus.yaml").settings)
        assert sum(len(part.classes) for part in splits.parts) == len(rows)
        with pytest.raises(UserError, match="The agent criteria needs no positions"):
            data_of(
                Study.from_config("corpus.yaml", agent="criteria").settings.model_copy(
                    update={"agent": "evidence"}
                )
            )
        Path("empty").mkdir()
        assert f"neither {POSTS} nor {ANNOTATIONS}" in sm("init", "empty", code=2)


def test_the_study_is_named_after_the_settings_file(tmp_path: Path) -> None:
    rows = [f"a long walk on day {i},{'yes' if i % 2 else 'no'}" for i in range(20)]
    (tmp_path / "notes.csv").write_text("\n".join(["text,label", *rows]))
    with inside(tmp_path):
        sm("init", "notes.csv", "--models", "tiny")
        sm("init", "notes.csv", "--models", "tiny", "-o", "second try.yaml")
        assert Study.from_config("notes.yaml").settings.name == "notes"
        assert Study.from_config("second try.yaml").settings.name == "second-try"
