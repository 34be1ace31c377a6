"""Typical user files: what `supermax init` guesses, and what a search then reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.search import preview
from supermax.search.data import data_of
from supermax.search.prepare import prepare_search
from supermax.study import Study
from supermax.training.data.splits import Splits
from supermax.ui.cli.tune import resolved
from tests.ui.cli.helping import inside, sm
from tests.ui.cli.input_files import (
    FILES,
    SECRET,
    SEVERAL,
    TEXT,
    File,
    csv,
    notes,
)

pytestmark = pytest.mark.usefixtures("quick", "preloaded")


def write(folder: Path, file: File) -> None:
    data = file.data if isinstance(file.data, bytes) else file.data.encode()
    (folder / file.name).write_bytes(data)


def read(folder: Path, name: str, **settings: object) -> Splits:
    return data_of(Study.from_config(folder / name, **settings).settings)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_file_is_read_as_intended(tmp_path: Path, file: File) -> None:
    write(tmp_path, file)
    place = f"{file.name.removesuffix('.gz').rpartition('.')[0]}.yaml"
    with inside(tmp_path):
        said = sm("init", file.name, code=0 if file.roles else 2)
        assert SECRET not in said
        for words in file.said:
            assert words in said
        if not file.roles:
            assert not (tmp_path / place).exists()
            return
        assert SECRET not in (tmp_path / place).read_text()
        settings = Study.from_config(place).settings
        assert settings.data.columns is not None
        assert settings.data.columns.model_dump(exclude_none=True) == file.roles
        if file.unfit:
            assert file.unfit in sm("tune", place, "--no-supervisor", code=2)
            return
        splits = read(tmp_path, place)
    assert sum(len({e.id for e in part.examples}) for part in splits.parts) == file.rows
    assert splits.train.label_names == file.labels


def test_text_in_another_encoding_is_decoded(tmp_path: Path) -> None:
    for file in FILES:
        if file.name in ("latin.csv", "quotes.csv", "russian.csv"):
            write(tmp_path, file)
    with inside(tmp_path):
        for name, word in (("latin", "café"), ("quotes", "\u2019long\u2019"), ("russian", "это")):
            sm("init", f"{name}.csv")
            assert all(word in e.text for e in read(tmp_path, f"{name}.yaml").train.examples)


@pytest.mark.parametrize("header", ["a,text\ttext\tlabel", '"a,text";text;label'])
def test_the_delimiter_is_that_of_all_lines(tmp_path: Path, header: str) -> None:
    mark = "\t" if "\t" in header else ";"
    rows = [mark.join(("x", *row.rsplit(",", 1))) for row in notes(60)]
    (tmp_path / "mine.csv").write_text(csv(header, *rows))
    data = {"path": str(tmp_path / "mine.csv"), "columns": TEXT}
    splits = data_of(Study.from_config({"data": data}, agent="criteria").settings)
    assert splits.train.label_names == ("no", "yes")


def test_a_repeated_byte_order_mark_is_not_part_of_a_column_name(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(
        b"\xef\xbb\xbf" * 2 + csv("text,label", *notes(60)).encode()
    )
    data = {"path": str(tmp_path / "mine.csv"), "columns": TEXT}
    assert data_of(Study.from_config({"data": data}, agent="criteria").settings)


def test_a_given_encoding_is_used(tmp_path: Path) -> None:
    rows = [row.replace("walk", "mały ląd") for row in notes(60)]
    (tmp_path / "polish.csv").write_bytes(csv("text,label", *rows).encode("cp1250"))
    with inside(tmp_path):
        assert "encoding     cp1250" in sm("init", "polish.csv", "--encoding", "cp1250")
        texts = [e.text for e in read(tmp_path, "polish.yaml").train.examples]
        assert all("mały ląd" in text for text in texts)
        wrong = {"data": {"path": "polish.csv", "columns": TEXT, "encoding": "cp1252x"}}
        with pytest.raises(UserError, match="There is no encoding 'cp1252x'"):
            data_of(Study.from_config(wrong, agent="criteria").settings)
        wrong["data"]["encoding"] = "ascii"
        with pytest.raises(
            UserError, match=r"is not ascii text: byte 53 .*0xb3, in line 2.*Name its"
        ):
            data_of(Study.from_config(wrong, agent="criteria").settings)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("regression.csv", "300 different numbers, which are no classes. The agent regression"),
        ("multilabel.csv", "several labels"),
    ],
)
def test_columns_without_classes_are_refused_as_labels(
    tmp_path: Path, name: str, why: str
) -> None:
    """Columns are refused also if they are mapped explicitly."""
    file = next(file for file in FILES if file.name == name)
    write(tmp_path, file)
    label = "target" if name == "regression.csv" else "label"
    data = {"path": str(tmp_path / name), "columns": {"text": "text", "label": label}}
    with pytest.raises(UserError, match=why):
        data_of(Study.from_config({"data": data}, agent="criteria").settings)


def test_the_advice_for_several_labels_in_a_row_works(tmp_path: Path) -> None:
    rows = []
    for row in SEVERAL:
        text, _, labels = row.rpartition(",")
        rows += [f"{text},{one},{'yes' if one in labels else 'no'}" for one in ("joy", "anger")]
    (tmp_path / "pairs.csv").write_text(csv("text,emotion,label", *rows))
    columns = {"text": "text", "question": "emotion", "label": "label"}
    data = {"path": str(tmp_path / "pairs.csv"), "columns": columns}
    splits = data_of(Study.from_config({"data": data}, agent="criteria").settings)
    assert sum(len(part.examples) for part in splits.parts) == 180


def test_labels_that_lack_classes_are_one_line_with_advice_that_works(tmp_path: Path) -> None:
    rows = notes(600, lambda i: f"title {i % 16}")
    (tmp_path / "titles.csv").write_text(csv("text,label", *rows))
    some = [f"title {i}" for i in range(6)]
    data = {"path": str(tmp_path / "titles.csv"), "columns": TEXT}
    with pytest.raises(UserError) as told:
        data_of(Study.from_config({"data": {**data, "labels": some}}, agent="criteria").settings)
    said = str(told.value)
    assert said.count("the label is none of") == 1
    assert "more like it" in said
    assert "Remove data.labels to take all labels of the file" in said
    assert "would drop 62% of the rows" in said
    splits = data_of(Study.from_config({"data": data}, agent="criteria").settings)
    assert len(splits.train.label_names) == 16


def test_tune_takes_a_table_and_writes_its_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    (tmp_path / "empty.yaml").write_text("agent: criteria\ndata: other.csv\n")
    command = ("--trials", "1", "--set", "epochs=1", "--no-supervisor")
    with inside(tmp_path):
        said = sm("tune", "mine.csv", *command)
        assert "text         text  (by its name)" in said
        assert "Settings written to mine.yaml" in said
        settings = (tmp_path / "mine.yaml").read_text()
        said = sm("tune", "mine.csv", *command)  # goes on, here: is done
        assert "Settings are read from mine.yaml" in said
        assert (tmp_path / "mine.yaml").read_text() == settings
        (tmp_path / "empty.csv").write_text(csv("text,label", *notes(60)))
        said = sm("tune", "empty.csv", *command, code=2)
        assert "does not describe empty.csv" in said
        sm("init", "empty.csv", "-o", "other.yaml")  # as it says


def test_missing_columns_are_guessed_and_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("what was said,verdict", *notes(60)))
    with inside(tmp_path):
        study = Study.from_config(agent="criteria", data="mine.csv")
        plan = "\n".join(study.plan())
        assert "data.columns.text = what was said (guessed, the longest texts)" in plan
        assert "data.columns.label = verdict (guessed, by its name)" in plan
        assert study.splits.train.label_names == ("no", "yes")


def test_inspecting_a_table_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    with inside(tmp_path):
        assert "tiny" in sm("plan", "mine.csv", "--gpu-memory", "24GiB")
        assert not Path("mine.yaml").exists()


def test_a_missing_table_is_not_taken_for_an_agent(tmp_path: Path) -> None:
    with inside(tmp_path):
        for name in ("missing.csv", "data/missing.csv"):
            said = sm("tune", name, "--no-supervisor", code=2)
            assert f"There is no file {name}." in said
            assert "agent" not in said


def test_a_given_encoding_is_written_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    with inside(tmp_path):
        sm("init", "mine.csv", "--encoding", "utf-8")
        assert Study.from_config("mine.yaml").settings.data.encoding == "utf-8"


@pytest.mark.slow
def test_the_settings_of_a_table_are_found_by_any_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    (tmp_path / "below").mkdir()
    with inside(tmp_path):
        sm("init", "mine.csv")
        given = ("--trials", "1", "--epochs", "1", "--no-supervisor")
        assert "trial 0" in sm("tune", "below/../mine.csv", *given)


def test_a_byte_order_mark_is_not_part_of_a_column_name(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(csv("\ufefftext,label", *notes(60)).encode("utf-16-le"))
    data = {"path": str(tmp_path / "mine.csv"), "columns": TEXT, "encoding": "utf-16-le"}
    assert data_of(Study.from_config({"data": data}, agent="criteria").settings)


def test_a_file_of_white_space_is_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("\u00a0\n")
    with pytest.raises(UserError, match="has no rows"):
        data_of(Study.from_config(agent="criteria", data=str(tmp_path / "mine.csv")).settings)


def test_validation_rows_are_drawn_from_train_where_there_are_none(tmp_path: Path) -> None:
    """Test rows stay test rows; the share and the seed are those of the settings."""
    (file,) = [file for file in FILES if file.name == "train-and-test.csv"]
    write(tmp_path, file)
    with inside(tmp_path):
        sm("init", file.name)
        splits = read(tmp_path, "train-and-test.yaml")
        again = read(tmp_path, "train-and-test.yaml")
        said = preview.describe_data(prepare_search(resolved("train-and-test.yaml", {})[0]))
    days = [{int(e.text.split()[2]) for e in part.examples} for part in splits.parts]
    assert days[2] == set(range(80, 100))
    assert (len(days[0]), len(days[1])) == (68, 12)
    assert days[0] | days[1] == set(range(80))
    assert splits.fingerprint == again.fingerprint
    assert "the data has no validation rows: they were drawn from train" in said


@pytest.mark.parametrize("name", ["multilabel.csv", "names.conll"])
def test_names_of_labels_and_of_types_are_written(tmp_path: Path, name: str) -> None:
    (file,) = [file for file in FILES if file.name == name]
    write(tmp_path, file)
    with inside(tmp_path):
        sm("init", name, "-o", "own.yaml")
        assert Study.from_config("own.yaml").settings.data.labels == list(file.labels)


def test_ratings_of_few_values_are_read_as_numbers_if_the_agent_says_so(tmp_path: Path) -> None:
    rows = [f"a text about day {i},{i % 5}" for i in range(60)]
    (tmp_path / "stars.csv").write_text(csv("text,stars", *rows))
    with inside(tmp_path):
        assert "agent        classification (criteria)" in sm(
            "init", "stars.csv", "-o", "classes.yaml"
        )
        sm("init", "stars.csv", "--agent", "regression")
        assert read(tmp_path, "classes.yaml").train.label_names == tuple("01234")
        assert {e.value for e in read(tmp_path, "stars.yaml").train.numbers} == {0, 1, 2, 3, 4}
