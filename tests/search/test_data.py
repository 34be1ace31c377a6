"""Data of a search: in memory, in a folder, with splits of its own; and the same when resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.search.data import taken_from_memory
from supermax.study import Study
from tests.training.data.inputs.formats import GOOD, columns_of

pandas = pytest.importorskip("pandas")
SMALL = {"agent": "criteria", "preset": "demo", "models": ["tiny"], "epochs": 1}


def frame(count: int = 60, first: int = 0) -> Any:
    texts = [f"on day {i} the zebra went out for a long walk" for i in range(first, first + count)]
    return pandas.DataFrame({"said": texts, "verdict": ["yes", "no"] * (count // 2)})


def test_data_is_taken_out_of_the_settings() -> None:
    data = frame()
    for given in (
        {"data": data},
        {"data": {"path": data, "columns": {"text": "said"}}},
        {"data.path": data},
    ):
        table = taken_from_memory(given)
        assert table is not None
        path = given.get("data.path", given.get("data"))
        assert table.name == (path["path"] if isinstance(path, dict) else path)
    assert taken_from_memory({"data": "notes.csv"}) is None
    assert taken_from_memory({"data": {"columns": {"text": "said"}}}) is None
    assert taken_from_memory({}) is None
    given = {"data": Path("notes.csv")}
    assert taken_from_memory(given) is None
    assert given == {"data": "notes.csv"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (3, "Data of the type int cannot be read"),
        ([{"text": "one"}], "Data of the type list cannot be read"),
        (pandas.Series(["one"]), "This is a Series of pandas"),
        (frame(0), "frame has no rows"),
        (pandas.DataFrame([["x", "a"]], columns=["y", "y"]), "the column 'y' occurs twice"),
    ],
    ids=["int", "list", "series", "empty", "twice"],
)
def test_data_that_cannot_be_used_is_refused_at_once(
    tmp_path: Path, data: object, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        Study.from_config(SMALL, data=data, outdir=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_columns_of_a_frame_are_guessed_or_given(tmp_path: Path) -> None:
    data = frame()
    guessed = Study.from_config(SMALL, data=data, outdir=str(tmp_path))
    assert not (tmp_path / "supermax-data").exists()  # nothing is written before it is needed
    given = {
        "path": data,
        "columns": {"text": "said", "label": "verdict"},
        "labels": ["yes", "no"],
    }
    chosen = Study.from_config(SMALL, data=given, outdir=str(tmp_path))
    assert guessed.splits.train.label_names == ("no", "yes")
    assert chosen.splits.train.label_names == ("yes", "no")
    assert len(list((tmp_path / "supermax-data").iterdir())) == 1  # one file for the same rows


def test_mistakes_of_a_frame_are_named_by_its_rows(tmp_path: Path) -> None:
    data = frame()
    data.loc[4, "said"] = " "
    study = Study.from_config(SMALL, data=data, outdir=str(tmp_path))
    with pytest.raises(UserError, match="frame, row index 4: the text is missing"):
        study.plan()


def test_splits_of_a_dataset_are_those_of_the_search(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = datasets.DatasetDict(
        train=datasets.Dataset.from_dict(columns_of(GOOD[:8])),
        validation=datasets.Dataset.from_dict(columns_of(GOOD[8:])),
    )
    columns = {"text": "text", "label": "label"}  # without the column of the splits
    data = {"path": parts, "columns": columns}
    splits = Study.from_config(SMALL, data=data, outdir=str(tmp_path)).splits
    assert [len(part.classes) for part in splits.parts] == [8, 4, 0]


@pytest.mark.usefixtures("quick", "preloaded")
def test_a_frame_is_resumed_and_another_one_refused(tmp_path: Path) -> None:
    def study(data: Any, trials: int) -> Study:
        return Study.from_config(SMALL, data=data, trials=trials, outdir=str(tmp_path))

    assert study(frame(), 1).run(progress=False).summary.finished == 1
    again = study(frame(), 2).run(progress=False)
    assert again.summary.finished == 2
    with pytest.raises(UserError, match="another name or another storage") as caught:
        study(frame(first=1), 3).run(progress=False)
    assert "data: " in str(caught.value)
    stored = again.study.user_attrs["supermax:settings"]["data"]["path"]
    assert Path(stored).parent == tmp_path / "supermax-data"


def test_the_agent_is_guessed_where_neither_agent_nor_columns_are_given(tmp_path: Path) -> None:
    scores = frame().assign(verdict=[i / 7 for i in range(60)])
    moods = frame().assign(verdict=[["joy"], ["joy", "anger"]] * 30)
    frame().to_csv(tmp_path / "notes.csv", index=False)
    given = {"models": ["tiny"], "outdir": str(tmp_path)}
    for data, agent in (
        (frame(), "criteria"),
        (scores, "regression"),
        (moods, "multilabel"),
        (tmp_path / "notes.csv", "criteria"),
        (str(tmp_path / "notes.csv"), "criteria"),
        ({"path": scores, "on_bad": "skip"}, "regression"),
    ):
        assert Study.from_config(given, data=data).settings.agent == agent
    assert Study.from_config(given, **{"data.path": scores}).settings.agent == "regression"
    assert (
        Study.from_config(given, agent="classification", data=moods).settings.agent == "criteria"
    )
    columns = {"text": "said", "label": "verdict"}
    for named in ({"path": scores, "columns": columns}, "synthetic"):
        with pytest.raises(UserError, match="No agent is named"):
            Study.from_config(given, data=named)
    with pytest.raises(UserError, match=r"notes2\.csv"):
        Study.from_config(given, data=str(tmp_path / "notes2.csv"))
