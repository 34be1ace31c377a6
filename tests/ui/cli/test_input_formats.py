"""Commands on data of each format, as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supermax.study import Study
from tests.training.data.inputs.formats import GOOD, columns_of, write_csv, write_parquet
from tests.ui.cli.helping import inside, sm

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
ROWS = [{**row, "id": f"{row['id']}-{k}", "text": f"{row['text']} {k}"} for k in range(5)
        for row in GOOD]  # fmt: skip
FEW = ("--models", "tiny", "--trials", "1", "--epochs", "1", "--no-supervisor")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-in for the Hub."""
    datasets = pytest.importorskip("datasets")
    parts = {
        "train": datasets.Dataset.from_dict(columns_of(ROWS[:40])),
        "test": datasets.Dataset.from_dict(columns_of(ROWS[40:])),
        "extra": datasets.Dataset.from_dict(columns_of(ROWS[:2])),
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict(parts))


def test_a_detected_separator_is_shown(tmp_path: Path) -> None:
    for separator, shown in ((";", ";"), ("\t", "tab"), ("|", "|")):
        write_csv(tmp_path, ROWS, separator)
        with inside(tmp_path):
            assert f"separator    {shown}  (detected)" in sm("init", "data.csv", "--force")
    write_csv(tmp_path, ROWS)
    with inside(tmp_path):
        assert "separator" not in sm("init", "data.csv", "--force")


def test_a_folder_of_texts_is_described_with_its_splits(tmp_path: Path) -> None:
    for i, row in enumerate(ROWS):
        place = tmp_path / "reviews" / ("train" if i < 40 else "test") / row["label"]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.txt").write_text(row["text"])
    with inside(tmp_path):
        said = sm("init", "reviews/")
        assert "reviews (folder of text files) is read as:" in said
        assert "split        split  (its own splits)" in said
        study = Study.from_config("reviews.yaml")
        assert len(study.splits.test.classes) == 20
        assert "does not describe" not in sm("plan", "reviews", "--gpu-memory", "24GiB")


def test_one_class_is_refused_by_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "reviews" / "pos").mkdir(parents=True)
    for i in range(5):
        (tmp_path / "reviews" / "pos" / f"{i}.txt").write_text(f"a text of day {i}")
    with inside(tmp_path):
        assert "The column 'label' holds only one class" in sm("init", "reviews")
        said = sm("tune", "reviews.yaml", "--no-supervisor", code=2)
    assert "reviews: all rows have the same label; classes need at least two." in said


@pytest.mark.usefixtures("hub")
def test_a_dataset_of_the_hub_is_described(tmp_path: Path) -> None:
    with inside(tmp_path):
        said = sm("init", "hub:owner/reviews:small@v1")
        assert "hub:owner/reviews:small@v1 (dataset) is read as:" in said
        assert "The split extra of reviews-small (2 rows) is not read" in said
        assert 'path: "hub:owner/reviews:small@v1"' in Path("reviews-small.yaml").read_text()
        assert len(Study.from_config("reviews-small.yaml").splits.test.classes) == 20


def test_a_name_of_the_hub_without_its_prefix_gets_advice(tmp_path: Path) -> None:
    advice = "If it is a dataset of the Hugging Face Hub, write hub:owner/reviews."
    with inside(tmp_path):
        assert advice in sm("init", "owner/reviews", code=2)
        assert advice in sm("tune", "owner/reviews", "--no-supervisor", code=2)
        assert advice in sm("tune", "criteria", "--data", "owner/reviews", *FEW, code=2)


def test_a_mistake_in_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[7]["text"] = " "
    write_parquet(tmp_path, rows)
    with inside(tmp_path):
        sm("init", "data.parquet")
        said = sm("tune", "data.yaml", "--no-supervisor", code=2)
    assert f"data.parquet, row index 7 (id {rows[7]['id']}): the text is missing" in said


def test_slurm_takes_settings_and_no_data(tmp_path: Path) -> None:
    (tmp_path / "reviews" / "pos").mkdir(parents=True)
    with inside(tmp_path):
        for target in ("data.parquet", "reviews", "hub:owner/reviews"):
            said = sm("slurm", target, "--nodes", "1", "--time", "1:00:00", code=2)
            assert "name one agent, or a YAML file" in said


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_a_dataset_of_the_hub_is_searched_refitted_and_predicted(tmp_path: Path) -> None:
    with inside(tmp_path):
        said = sm("tune", "hub:owner/reviews", *FEW)
        assert "The split extra of reviews (2 rows) is not read" in said
        assert "the data has no validation rows: they were drawn from train" in said
        sm("tune", "hub:owner/reviews", *FEW)  # goes on, here: is done
        sm("refit", "reviews", "--seeds", "1")
        said = sm("predict", "reviews-model", "hub:owner/reviews", "-o", "answers.csv")
        assert "60 rows predicted" in said
        write_parquet(tmp_path, ROWS)
        said = sm("predict", "reviews-model", "data.parquet", "-o", "more.csv")
        assert "60 rows predicted" in said
