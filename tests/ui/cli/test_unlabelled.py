"""Rows without a label: `init` counts them, `tune` leaves them out, `predict` answers them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.ui.cli.helping import inside, sm, table

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
QUICK = ("--trials", "1", "--set", "epochs=1", "--no-supervisor")


@pytest.mark.slow
def test_rows_to_predict_may_stand_beside_those_to_learn_from(tmp_path: Path) -> None:
    with inside(tmp_path):
        table(tmp_path / "notes.csv", rows=90)
        with (tmp_path / "notes.csv").open("a") as file:
            file.writelines(f"n{i},I slept like log number {i},Does it?,\n" for i in range(4))
        assert "4 rows without a label" in sm("init", "notes.csv")
        said = sm("tune", "notes.yaml", *QUICK)
        assert "4 rows in notes.csv without a label are left out" in said
        assert "90 texts to classify" in said
        assert "4 rows in notes.csv without a label" in _report(tmp_path)
        sm("refit", "notes", "--seeds", "1")
        sm("predict", "notes-model", "notes.csv", "-o", "answers.csv")
        with (tmp_path / "answers.csv").open() as file:
            answers = [row["label"] for row in csv.DictReader(file)]
    assert len(answers) == 94
    assert set(answers) <= {"yes", "no"}


def _report(folder: Path) -> str:
    sm("report", "notes", "-o", "report.html")
    return (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_test_split_without_labels_cannot_be_scored(tmp_path: Path) -> None:
    lines = [f"note number {i} of some words,{'ab'[i % 2]},train" for i in range(60)]
    lines += [f"note number {i} of some words,{'ab'[i % 2]},dev" for i in range(60, 90)]
    lines += [f"Note number {i} of some  words,,test" for i in range(5)]
    lines += ["NOTE number 1 of some words,b,dev"]
    with inside(tmp_path):
        (tmp_path / "notes.csv").write_text("\n".join(["text,label,split", *lines]) + "\n")
        sm("init", "notes.csv")
        said = sm("tune", "notes.yaml", *QUICK)
        assert "5 rows of the test split in notes.csv without a label cannot be scored" in said
        assert "1 of 31 texts of the validation split also occurs in train" in said
        assert "60 for training, 31 for validation, 0 for the test of a refit" in said
        assert "test split" in sm("refit", "notes", code=2)


@pytest.mark.slow
def test_a_split_that_nothing_can_be_judged_by_is_told(tmp_path: Path) -> None:
    lines = [f"note number {i} of some words,{'ab'[i % 2]},train" for i in range(40)]
    lines += [f"note number {i} of some words,,dev" for i in range(40, 60)]
    with inside(tmp_path):
        (tmp_path / "notes.csv").write_text("\n".join(["text,label,split", *lines]) + "\n")
        sm("init", "notes.csv")
        said = sm("tune", "notes.yaml", *QUICK, code=2)
        assert "validation: no row with a label" in said
        # The advice works.
        settings = (tmp_path / "notes.yaml").read_text()
        kept = [line for line in settings.splitlines() if not line.strip().startswith("split: ")]
        (tmp_path / "notes.yaml").write_text("\n".join(kept) + "\n")
        assert "20 rows in notes.csv without a label" in sm("tune", "notes.yaml", *QUICK)
