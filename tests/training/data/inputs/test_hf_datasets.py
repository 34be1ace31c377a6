"""Hugging Face datasets: names of classes, splits, saved folders, and names of the Hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.tasks.data_notices import weaknesses
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.reading import read_rows
from supermax.training.data.splits import read_splits
from supermax.training.data.tables import Columns, read_table
from tests.training.data.inputs.formats import GOOD, columns_of, write_parquet

datasets = pytest.importorskip("datasets")
COLUMNS = Columns("text", label="label")


def typed(count: int = 12, **more: list[Any]) -> Any:
    """Return a dataset whose labels are typed as classes; the last one is hidden."""
    labels = [i % 2 for i in range(count - 1)] + [-1]
    texts = [f"text {count} of day {i}" for i in range(count)]
    features = {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["neg", "pos"]),
    }
    more_features = {name: datasets.Value("binary") for name in more}
    data = {"text": texts, "label": labels, **more}
    return datasets.Dataset.from_dict(data, datasets.Features(features | more_features))


def in_splits() -> Any:
    parts = {"train": typed(20), "test": typed(8), "unsupervised": typed(4)}
    return datasets.DatasetDict(parts)


def test_classes_keep_their_names_and_hidden_labels_are_unlabelled() -> None:
    corpus = read_table(typed(), COLUMNS)
    assert corpus.label_names == ("neg", "pos")
    assert [e.label for e in corpus.classes] == [i % 2 for i in range(11)]
    assert corpus.unlabelled[0].rows == 1
    assert guess_file(typed()).labels == ("neg", "pos")


def test_a_view_of_a_dataset_is_read_in_its_order() -> None:
    view = typed().select([5, 3])
    assert [e.text for e in read_table(view, Columns("text")).classes] == [
        "text 12 of day 5",
        "text 12 of day 3",
    ]


@pytest.mark.parametrize("saved", [False, True])
def test_splits_of_a_dataset_are_its_splits(tmp_path: Path, saved: bool) -> None:
    source, name = in_splits(), "dataset"
    if saved:
        source.save_to_disk(str(tmp_path / "reviews"))
        source, name = tmp_path / "reviews", "reviews"
    splits = read_splits(source, COLUMNS)
    assert [len(part.classes) for part in splits.parts] == [19, 0, 7]
    assert {e.id for e in splits.test.classes} == {f"{name} (test):{i}" for i in range(7)}
    said = "\n".join(weaknesses(splits))
    assert f"The split unsupervised of {name} (4 rows) is not read" in said
    guessed = guess_file(source)
    assert guessed.role("split") == "split"
    assert any("unsupervised" in remark for remark in guessed.remarks)


def test_mistakes_name_the_split_and_the_index() -> None:
    parts = in_splits()
    parts["test"] = parts["test"].map(
        lambda row, i: {"text": "" if i == 3 else row["text"]}, with_indices=True
    )
    with pytest.raises(UserError, match=r"dataset \(test\), row index 3: the text is missing"):
        read_splits(parts, COLUMNS)


def test_a_column_named_split_does_not_hide_the_splits() -> None:
    parts = datasets.DatasetDict(
        {k: typed(8).add_column("split", ["x"] * 8) for k in ("train", "test")}
    )
    splits = read_splits(parts, COLUMNS)
    assert [len(part.classes) for part in splits.parts] == [7, 0, 7]


def test_splits_without_a_known_name_are_refused() -> None:
    parts = datasets.DatasetDict(a=typed(), b=typed())
    with pytest.raises(UserError, match=r"has the splits a, b: none of them is train"):
        read_table(parts, COLUMNS)
    # A single one is data without splits.
    assert read_rows(datasets.DatasetDict(a=typed()), BadRows()).split is None


def test_columns_that_are_no_text_are_named() -> None:
    table = read_rows(typed(image=[b"\x89PNG"] * 12), BadRows())
    assert table.columns == ("text", "label")
    assert "The column image of dataset is not read" in table.remarks[0]


def test_lists_of_classes_have_names() -> None:
    many = datasets.List(datasets.ClassLabel(names=["a", "b"]))
    features = datasets.Features({"text": datasets.Value("string"), "labels": many})
    data = datasets.Dataset.from_dict({"text": ["one", "two"], "labels": [[0, 1], []]}, features)
    table = read_rows(data, BadRows())
    assert [row.values["labels"] for row in table.rows] == [["a", "b"], []]
    assert table.classes == {"labels": ("a", "b")}


def test_datasets_that_cannot_be_used(tmp_path: Path) -> None:
    for source, why in (
        (typed().to_iterable_dataset(), "load it without streaming=True"),
        (datasets.DatasetDict(), "a DatasetDict that is not empty"),
    ):
        with pytest.raises(UserError, match=why):
            read_rows(source, BadRows())
    typed().save_to_disk(str(tmp_path / "saved"))
    for file in (tmp_path / "saved").glob("*.arrow"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        read_rows(tmp_path / "saved", BadRows())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stand-in for the Hub, which these tests cannot reach: the calls of load_dataset."""
    calls: list[tuple[Any, ...]] = []

    def load(name: str, config: str | None = None, revision: str | None = None) -> Any:
        calls.append((name, config, revision))
        if name == "owner/missing":
            raise datasets.exceptions.DatasetNotFoundError("Dataset 'owner/missing' doesn't exist")
        return in_splits()

    monkeypatch.setattr(datasets, "load_dataset", load)
    return calls


@pytest.mark.parametrize(
    ("name", "call", "stem"),
    [
        ("hub:imdb", ("imdb", None, None), "imdb"),
        ("hub:owner/reviews", ("owner/reviews", None, None), "reviews"),
        ("hub:owner/reviews:small", ("owner/reviews", "small", None), "reviews-small"),
        ("hub:owner/reviews@abc123", ("owner/reviews", None, "abc123"), "reviews"),
        ("hub:owner/reviews:s@v1.0", ("owner/reviews", "s", "v1.0"), "reviews-s"),
    ],
)
def test_a_dataset_of_the_hub(
    hub: list[tuple[Any, ...]], name: str, call: tuple[Any, ...], stem: str
) -> None:
    splits = read_splits(name, COLUMNS)
    assert [len(part.classes) for part in splits.parts] == [19, 0, 7]
    assert hub == [call]
    assert splits.train.name == stem


def test_names_that_the_hub_does_not_have(hub: list[tuple[Any, ...]]) -> None:
    with pytest.raises(UserError, match=r"hub:owner/missing cannot be loaded .*doesn't exist"):
        read_rows("hub:owner/missing", BadRows())
    for wrong in ("hub:", "hub:a b", "hub:@x"):
        with pytest.raises(UserError, match="write hub:OWNER/NAME"):
            read_rows(wrong, BadRows())
    assert len(hub) == 1


@pytest.mark.parametrize(("package", "extra"), [("pyarrow", "parquet"), ("datasets", "datasets")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    source: Any = write_parquet(tmp_path, GOOD) if package == "pyarrow" else "hub:imdb"
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    finder = type("Missing", (), {"find_spec": staticmethod(_missing(package))})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(UserError, match=rf"pip install {package} \(extra {extra} of supermax\)"):
        read_rows(source, BadRows())


def _missing(package: str) -> Any:
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    return find_spec


def test_other_columns_of_a_dataset_are_read_too() -> None:
    data = datasets.Dataset.from_dict(columns_of(GOOD))
    assert read_rows(data, BadRows()).columns == ("id", "text", "label")


def test_a_transform_is_refused_with_advice_that_works() -> None:
    """Datasets apply it when rows are read one by one: these are not the rows that are stored."""

    def upper(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**rows, "text": [text.upper() for text in rows["text"]]}

    view = typed().with_transform(upper)
    with pytest.raises(UserError, match=r"dataset has a transform .*reset_format\(\), then"):
        read_table(view, COLUMNS)
    view.reset_format()
    assert read_table(view.map(upper, batched=True), COLUMNS).classes[0].text == "TEXT 12 OF DAY 0"


def test_an_only_split_that_is_not_train_is_named() -> None:
    only = datasets.DatasetDict({"test": typed()})
    remarks = guess_file(only).remarks
    assert remarks == (
        "dataset has no split but test, whose rows are read as data without splits.",
    )
    assert guess_file(datasets.DatasetDict({"train": typed()})).remarks == ()
