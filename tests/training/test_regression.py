"""The agent regression: reading numbers, training, refit, export and prediction."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from supermax.errors import UserError
from supermax.tasks.preflight import check_parts
from supermax.training.config import read_config
from supermax.training.data.classes import are_numbers
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus
from supermax.training.data.guessing import guess_file
from supermax.training.data.splits import read_splits, split
from supermax.training.data.synthetic import synthetic_ratings
from supermax.training.data.tables import read_table
from supermax.training.deploy.predict import predict_file
from supermax.training.deploy.refit import refit
from supermax.training.eval.baseline import baseline, trivial
from supermax.training.loop import train
from supermax.training.memory_probe import probe_memory
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution
from tests.training.corpora import Quiet, config, numeric

COLUMNS = Columns(text="text", label="score")


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "score"), *rows])
    return path


def test_numbers_are_read_and_bad_ones_named_by_row_and_column(tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", [("a b", "1.5"), ("c d", "-2e3"), ("e f", ""), ("g", "7")])
    corpus = read_table(good, COLUMNS, numeric=True)
    assert [e.value for e in corpus.numbers] == [1.5, -2000, 7]
    assert (corpus.classes, corpus.spans, corpus.label_names) == ((), (), ())
    assert corpus.unlabelled[0].rows == 1
    bad = write(tmp_path / "bad.csv", [("a", "1"), ("b", "high"), ("c", "nan"), ("d", "2")])
    with pytest.raises(UserError, match="2 mistakes in 2 rows") as error:
        read_table(bad, COLUMNS, numeric=True)
    assert "the column 'score' holds no number" in str(error.value)
    assert "line 3" in str(error.value) or "lines 3" in str(error.value)
    assert len(read_table(bad, COLUMNS, numeric=True, on_bad="skip").numbers) == 2
    unmapped = read_table(good, Columns(text="text"), numeric=True)
    assert len(unmapped.classes) == 4
    assert unmapped.numbers == ()
    same = write(tmp_path / "same.csv", [("a", "1"), ("b", "1.0")])
    with pytest.raises(UserError, match="fewer than two different numbers"):
        read_table(same, COLUMNS, numeric=True)
    with pytest.raises(UserError, match="learns numbers"):
        read_table(good, COLUMNS, numeric=True, labels=["1", "2"])


def test_predefined_splits_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "split.jsonl"
    rows = [{"text": f"t{i}", "score": i / 2, "part": p} for i, p in enumerate(["train"] * 3)]
    rows += [{"text": "v", "score": 9, "part": "dev"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(text="text", label="score", split="part")
    splits = read_splits(path, columns, numeric=True)
    assert [len(part.numbers) for part in splits.parts] == [3, 1, 0]
    assert splits.seen.numbers == splits.train.numbers + splits.validation.numbers


def test_few_or_textual_values_are_no_numbers() -> None:
    assert are_numbers([str(i / 7) for i in range(100)])
    assert not are_numbers(["1", "2", "3"] * 40)  # ratings are classes
    mostly = [str(i / 7) for i in range(100)]
    assert are_numbers([*mostly, "high"])  # a mistake, which is reported by its line
    assert not are_numbers([*mostly, *("high",) * 10])


def test_the_fingerprint_depends_on_the_numbers() -> None:
    first = synthetic_ratings(20)
    assert first.fingerprint == synthetic_ratings(20).fingerprint
    changed = synthetic_ratings(20, seed=1)
    assert first.fingerprint != changed.fingerprint


def test_losses_belong_to_agents() -> None:
    base = {"encoder": {"name": "tiny"}}
    assert read_config({**base, "agent": "regression"}).loss.name == "mse"
    assert read_config(base).loss.name == "cross_entropy"
    for agent, loss in (("regression", "focal"), ("criteria", "huber")):
        with pytest.raises(UserError, match=f"loss.name is {loss}, but the agent {agent}"):
            read_config({**base, "agent": agent, "loss": {"name": loss}})


def test_it_learns_in_the_unit_of_the_data(tmp_path: Path) -> None:
    splits = split(synthetic_ratings(200, difficulty=0.1))
    wanted = config("regression", train={"epochs": 4}, optim={"lr": 3e-3})
    prepared = prepare(wanted, splits.train, splits.validation, cache=tmp_path)
    result = train(prepared, Quiet())
    true = np.array([e.value for e in prepared.validation.examples])
    found = np.array([result.evaluation.numbers[e.id] for e in prepared.validation.examples])
    assert result.metrics["rmse"] == pytest.approx(np.sqrt(((true - found) ** 2).mean()))
    assert result.metrics["rmse"] < true.std() / 2
    assert result.value == result.metrics["spearman"]
    assert found.mean() == pytest.approx(true.mean(), abs=1)


def test_the_best_epoch_has_the_least_rmse(tmp_path: Path) -> None:
    wanted = config("regression", train={"epochs": 4}, optim={"lr": 3e-3})
    prepared = prepare(wanted, numeric(40, 1), numeric(20, 2), cache=tmp_path, objective="rmse")
    result = train(prepared, Quiet())
    curve = [row["rmse"] for row in result.curve]
    assert result.value == min(curve)
    assert result.best_epoch == 1 + int(np.argmin(curve))


def test_refit_export_and_prediction(tmp_path: Path) -> None:
    splits = split(synthetic_ratings(120, difficulty=0.1))
    wanted = config("regression", train={"epochs": 3}, optim={"lr": 3e-3})
    done = refit(wanted, splits, seeds=(1, 2), cache=tmp_path / "cache", folder=tmp_path / "model")
    assert set(done.metrics) == {"spearman", "pearson", "rmse", "r2"}
    assert done.metrics["rmse"].low < done.metrics["rmse"].mean < done.metrics["rmse"].high
    assert "predicts a number from a text" in (tmp_path / "model" / "README.md").read_text()
    rows = [(e.text, str(e.value)) for e in splits.test.numbers]
    file = write(tmp_path / "new.csv", rows)
    for out in ("out.csv", "out.jsonl"):
        predicted = predict_file(tmp_path / "model", file, COLUMNS, tmp_path / out)
        chosen = next(run for run in done.runs if run.seed == done.chosen)
        assert predicted.scores.measured == len(rows)
        assert predicted.scores.numbers == pytest.approx(chosen.metrics, rel=1e-4)
    with (tmp_path / "out.csv").open() as written:
        values = [float(row["value"]) for row in csv.DictReader(written)]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert values == pytest.approx([line["value"] for line in lines])
    assert "probabilities" not in lines[0]


def test_its_memory_can_be_probed_before_a_trial() -> None:
    wanted = config("regression", train={"effective_batch": 4})
    peak = probe_memory(wanted, Execution(micro_batch=2, threads=1), 16, updates=1)
    assert peak.seconds > 0


def test_baselines() -> None:
    splits = split(synthetic_ratings(200, difficulty=0.1))
    ridge = baseline(splits.train, splits.validation)
    assert ridge["spearman"] > 0.8
    constant = trivial(splits.train, splits.validation)
    assert constant["spearman"] == 0
    assert ridge["rmse"] < constant["rmse"]
    empty = Corpus("empty", ())
    assert baseline(splits.train, empty) == trivial(splits.train, empty) == {}


def test_decimal_commas_are_named_with_advice_that_works(tmp_path: Path) -> None:
    rows = [(f"number {i} of a text", f"{i},5") for i in range(40)]
    path = write(tmp_path / "comma.csv", rows)
    with pytest.raises(UserError, match=r"3\.5 instead of 3,5"):
        read_table(path, COLUMNS)
    with pytest.raises(UserError, match=r"holds no number(?s:.*)3\.5 instead of 3,5"):
        read_table(path, COLUMNS, numeric=True)
    assert "3.5 instead of 3,5" in dict(guess_file(path).unfit)["score"]
    points = write(tmp_path / "point.csv", [(text, n.replace(",", ".")) for text, n in rows])
    assert read_table(points, COLUMNS, numeric=True).numbers[3].value == 3.5
    assert guess_file(points).agent == "regression"


def test_numbers_whose_squares_overflow_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "huge.csv", [("a b", "1e300"), ("c d", "1")])
    with pytest.raises(UserError, match=r"numbers beyond 1e\+100"):
        read_table(path, COLUMNS, numeric=True)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_split_with_one_number_is_refused_before_any_trial(part: str) -> None:
    splits = split(numeric(40), seed=1)
    check_parts("regression", splits)
    own = getattr(splits, part)
    same = replace(own, numbers=tuple(replace(e, value=3.0) for e in own.numbers))
    with pytest.raises(UserError, match=f"All numbers of the {part} split are the same"):
        check_parts("regression", replace(splits, **{part: same}))


def test_mean_and_deviation_are_stored_in_double_precision(tmp_path: Path) -> None:
    """Unix times have a mean that fp32 rounds by up to 64."""
    corpus = numeric(40)
    moved = tuple(replace(e, value=1.6e9 + 40 + float(e.value or 0)) for e in corpus.numbers)
    train_split = replace(corpus, numbers=moved)
    own = prepare(config("regression"), train_split, corpus, cache=tmp_path)
    true = np.array([e.value for e in moved])
    assert own.model.unit is not None
    assert own.model.unit.mean == pytest.approx(true.mean(), rel=1e-15)
    assert own.model.unit.deviation == pytest.approx(true.std(), rel=1e-9)
